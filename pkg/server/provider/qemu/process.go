// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"nstance.dev/operator/pkg/server/provider/qemu/qmp"
)

// lockDescriptor is the number of the lock file in QEMU, the first that exec.Cmd passes on.
const lockDescriptor = 3

// start starts QEMU with the lock of the folder. The returned channel is closed when it
// has exited. It survives this process: it has a session of its own, and the lock shows
// that it runs.
func (a *API) start(f folder, lock *os.File, args []string) (exited <-chan struct{}, err error) {
	log, err := os.OpenFile(f.file(logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(a.options.Binary, args...)
	cmd.Dir, cmd.Env = f.path, environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // a failure is in its log
	}()
	return done, nil
}

// connect connects to the QEMU of a folder, by a short path: that of a socket has at most
// 107 characters.
func (f folder) connect(ctx context.Context) (*qmp.Client, error) {
	directory, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	return qmp.Dial(ctx, fmt.Sprintf("/proc/self/fd/%d/%s", directory.Fd(), socketFile))
}

// execute connects and sends one command.
func (f folder) execute(ctx context.Context, command string, result any) error {
	client, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Execute(ctx, command, nil, result)
}

// kill kills the QEMU of a folder, whether or not it responds.
func (f folder) kill() error {
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, path := range pids {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil || !f.runs(pid) {
			continue
		}
		if err := f.killProcess(pid); err != nil {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// runs reports whether a process is the QEMU of the folder: it runs there and has the lock.
func (f folder) runs(pid int) bool {
	for name, want := range map[string]string{"cwd": f.path, fmt.Sprintf("fd/%d", lockDescriptor): f.file(lockFile)} {
		has, err := os.Stat(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return false
		}
		if wanted, err := os.Stat(want); err != nil || !os.SameFile(has, wanted) {
			return false
		}
	}
	return true
}

func (f folder) killProcess(pid int) error {
	// The handle stays that of one process, even if its id is used again.
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer func() { _ = process.Release() }()
	if !f.runs(pid) {
		return nil
	}
	if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// maxReason bounds the text of a reason.
const maxReason = 500

// logTail returns the last lines that QEMU has written.
func (f folder) logTail() string {
	data, err := os.ReadFile(f.file(logFile))
	if err != nil {
		return ""
	}
	text := strings.Join(strings.Fields(string(data)), " ")
	return text[max(0, len(text)-maxReason):]
}
