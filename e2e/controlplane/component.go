// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long a component may take to become ready, and to end after SIGTERM
// before it is killed. Both are generous: the machine may be small and busy.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 15 * time.Second
)

// Spec says how a component is run.
type Spec struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	// Env is added to the environment of whoever starts the component.
	Env []string `json:"env,omitempty"`
	// Ports are those that the component listens on, the main one first.
	Ports []int `json:"ports,omitempty"`
	Ready Probe `json:"ready"`
}

// Component is one process of the control plane or beside it. What is known
// of it is kept on disk (see record), so that another program can tell its
// state, end it and start it again.
type Component struct {
	Spec
	dir      string
	sequence int
	// exited is told how a process ended that was started by Start and not
	// asked to end by Stop or Kill. May be nil.
	exited func(how string)
	// ending is the id of the process that Stop or Kill last ended.
	ending atomic.Int64
}

// LogPath is the file that collects the component's output.
func (c *Component) LogPath() string { return logPath(c.dir, c.Name) }

// PID returns the process id of the running component, or false.
func (c *Component) PID() (int, bool) {
	r, err := readRecord(c.dir, c.Name)
	if err != nil || !r.Process.running() {
		return 0, false
	}
	return r.Process.PID, true
}

// Start runs the component as a child that does not outlive this program, and
// returns once it is ready. A component that is running already is refused.
func (c *Component) Start(ctx context.Context) error {
	// The kernel sends the signal when the parent ends, in whatever way. More
	// exactly when the thread ends that started the child; a Go program ends
	// threads early only for goroutines that return while locked to theirs.
	return c.start(ctx, &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL})
}

// StartDetached runs the component so that it outlives this program, and
// returns once it is ready.
func (c *Component) StartDetached(ctx context.Context) error {
	return c.start(ctx, &syscall.SysProcAttr{Setsid: true})
}

// start gives the component a process group (or session) of its own, so that
// Ctrl-C on the terminal does not reach it past the ordered stop.
func (c *Component) start(ctx context.Context, attributes *syscall.SysProcAttr) error {
	if pid, running := c.PID(); running {
		return fmt.Errorf("%s is running already (process %d)", c.Name, pid)
	}
	log, err := openLog(c.LogPath())
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes
	child, err := launch(cmd)
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	if err := c.settle(ctx, child); err != nil {
		child.kill()
		return fmt.Errorf("starting %s: %w\n%s", c.Name, err, logTail(c.LogPath(), begin))
	}
	go c.report(child)
	return nil
}

// settle puts a new process on record and waits until it is ready.
func (c *Component) settle(ctx context.Context, child *child) error {
	id, _, err := identify(child.pid())
	if err != nil {
		return err
	}
	if err := (record{Spec: c.Spec, Sequence: c.sequence, Process: id}).write(c.dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	probed := make(chan error, 1)
	go func() { probed <- c.Ready.wait(ctx) }()
	select {
	case err := <-probed:
		if err != nil {
			return fmt.Errorf("it did not become ready: %w", err)
		}
		return nil
	case <-child.ended:
		return fmt.Errorf("it ended before it was ready: %s", child.how())
	}
}

// report waits for the end of a process and tells of one that nobody asked for.
func (c *Component) report(child *child) {
	<-child.ended
	if c.exited != nil && c.ending.Load() != int64(child.pid()) {
		c.exited(child.how())
	}
}

// Stop ends the component with SIGTERM, and with SIGKILL when it has not
// ended after a while. It works on whatever process is on record, its own
// child or one that another program has started again since.
func (c *Component) Stop(ctx context.Context) error {
	return c.end(ctx, func(p *process) error {
		if err := p.signal(unix.SIGTERM); err != nil {
			return err
		}
		patience, cancel := context.WithTimeout(ctx, stopTimeout)
		defer cancel()
		if err := p.wait(patience); err == nil {
			return nil
		}
		return p.signal(unix.SIGKILL)
	})
}

// Kill ends the component with SIGKILL, like a crash.
func (c *Component) Kill(ctx context.Context) error {
	return c.end(ctx, func(p *process) error { return p.signal(unix.SIGKILL) })
}

// Freeze keeps the component's process from running until Thaw, like a machine
// that hangs: its connections stay open and nobody answers on them.
func (c *Component) Freeze() error { return c.signal(unix.SIGSTOP) }

// Thaw lets a frozen component run on.
func (c *Component) Thaw() error { return c.signal(unix.SIGCONT) }

func (c *Component) signal(signal unix.Signal) error {
	r, err := readRecord(c.dir, c.Name)
	if err != nil {
		return err
	}
	p, err := r.Process.open()
	if err != nil {
		return fmt.Errorf("sending %s to %s: %w", signal, c.Name, err)
	}
	defer p.close()
	return p.signal(signal)
}

func (c *Component) end(ctx context.Context, how func(*process) error) error {
	r, err := readRecord(c.dir, c.Name)
	if errors.Is(err, os.ErrNotExist) {
		return nil // never started
	}
	if err != nil {
		return err
	}
	c.ending.Store(int64(r.Process.PID))
	p, err := r.Process.open()
	if err == nil {
		defer p.close()
		err = how(p)
		if err == nil {
			// A killed process is gone in no time; only a kernel that cannot
			// end it makes this wait, and then the context's end is no help.
			err = p.wait(context.WithoutCancel(ctx))
		}
	}
	if err != nil && !errors.Is(err, errNotRunning) {
		return fmt.Errorf("stopping %s: %w", c.Name, err)
	}
	return removePID(c.dir, c.Name)
}

func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}
