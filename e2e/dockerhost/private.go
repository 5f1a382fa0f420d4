// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dockerhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// startTimeout is how long a daemon may take to start, and stopTimeout to stop.
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// private is a daemon with its state in a folder. Several programs may use it: each has a
// shared lock, which the kernel releases when the program exits.
type private struct {
	dir   string
	users *os.File
}

// openPrivate returns the daemon of a folder. It starts the daemon unless another program has done
// so, maybe a program that was interrupted.
func openPrivate(ctx context.Context, program, dir string) (*Host, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	unlock, err := lockFile(filepath.Join(dir, "start.lock"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock.Close()
	p := &private{dir: dir}
	if p.users, err = lockFile(filepath.Join(dir, "users.lock"), unix.LOCK_SH); err != nil {
		return nil, err
	}
	address := "unix://" + filepath.Join(dir, "docker.sock")
	h, err := Connect(ctx, address)
	if err != nil {
		h, err = p.start(ctx, program, address)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), p.stopUnlessUsed())
	}
	h.private = p
	return h, nil
}

// start runs the daemon. It outlives this program, because containers have to be removed
// after an interrupt, and other programs may use it.
func (p *private) start(ctx context.Context, program, address string) (*Host, error) {
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	daemon := exec.Command(program, "--host="+address, "--pidfile="+p.pidFile(),
		"--data-root="+filepath.Join(p.dir, "data"), "--exec-root="+filepath.Join(p.dir, "exec"))
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	exited := make(chan error, 1)
	go func() { exited <- daemon.Wait() }()
	var h *Host
	var notReady error
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-exited:
			return false, fmt.Errorf("it has exited: %w", err)
		default:
		}
		h, notReady = Connect(ctx, address)
		return notReady == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("it is not ready (log: %s): %w", log.Name(), errors.Join(err, notReady))
	}
	return h, nil
}

// close stops the daemon if no other program uses it.
func (p *private) close() error {
	unlock, err := lockFile(filepath.Join(p.dir, "start.lock"), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock.Close()
	return p.stopUnlessUsed()
}

func (p *private) stopUnlessUsed() error {
	defer p.users.Close()
	if err := unix.Flock(int(p.users.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil
		}
		return fmt.Errorf("lock %s: %w", p.users.Name(), err)
	}
	return p.stop()
}

// stop terminates the daemon, which may be no child of this program.
func (p *private) stop() error {
	data, err := os.ReadFile(p.pidFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil // it never ran, or has exited
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil {
		return fmt.Errorf("read %s: %w", p.pidFile(), err)
	}
	daemon, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop dockerd (process %d): %w", pid, err)
	}
	defer unix.Close(daemon)
	// The id may belong to another process by now.
	if arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !bytes.Contains(arguments, []byte(p.pidFile())) {
		return nil
	}
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(daemon, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop dockerd (process %d): %w", pid, err)
		}
		exit := []unix.PollFd{{Fd: int32(daemon), Events: unix.POLLIN}}
		if n, err := unix.Poll(exit, int(stopTimeout/time.Millisecond)); err == nil && n > 0 {
			return nil
		}
	}
	return fmt.Errorf("dockerd (process %d) has not stopped within %s", pid, stopTimeout)
}

func (p *private) pidFile() string { return filepath.Join(p.dir, "pid") }

// lockFile opens a file and locks it until it is closed.
func lockFile(path string, how int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return file, nil
}
