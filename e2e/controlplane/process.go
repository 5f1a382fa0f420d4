// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errNotRunning is the error for a recorded process that has exited, also when its id
// belongs to another process by now.
var errNotRunning = errors.New("not running")

// processID names one process for ever. A process id alone is reused by the
// kernel; together with the time the process started it is not.
type processID struct {
	PID int `json:"pid"`
	// StartTicks is when the process started, in clock ticks since boot
	// (field 22 of /proc/PID/stat).
	StartTicks uint64 `json:"startTicks"`
}

// identify returns the identity of the process that has pid now, and whether
// it still runs or only waits for its parent to read its state. Without such a process
// the error is errNotRunning.
func identify(pid int) (id processID, running bool, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return processID{}, false, errNotRunning
	}
	if err != nil {
		return processID{}, false, fmt.Errorf("reading the state of process %d: %w", pid, err)
	}
	// The second field is the command in parentheses and may itself contain spaces
	// and parentheses; the fields are counted from behind it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return processID{}, false, fmt.Errorf("the state of process %d has an unknown form: %q", pid, stat)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return processID{}, false, fmt.Errorf("the start time of process %d: %w", pid, err)
	}
	running = fields[0] != "Z" && fields[0] != "X"
	return processID{PID: pid, StartTicks: start}, running, nil
}

// process is an open handle of a running process, its child or not. The
// handle stays with the process even when its id is reused.
type process struct{ fd int }

// open returns a handle of the process, or errNotRunning.
func (id processID) open() (*process, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, errNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", id.PID, err)
	}
	p := &process{fd: fd}
	// Compared after opening: the handle is of the same process from here on. Whether
	// it runs does not matter: waiting for an exited process returns at once, and the
	// first thread may have exited before others.
	if now, _, err := identify(id.PID); err != nil || now != id {
		p.close()
		return nil, errNotRunning
	}
	return p, nil
}

func (id processID) running() bool {
	now, running, err := identify(id.PID)
	return err == nil && now == id && running
}

func (p *process) close() { _ = unix.Close(p.fd) }

// signal sends sig; it is no error if the process has exited already.
func (p *process) signal(sig unix.Signal) error {
	err := unix.PidfdSendSignal(p.fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// wait returns when the process has exited, or with the context's error.
func (p *process) wait(ctx context.Context) error {
	const slice = 100 * time.Millisecond // how late a cancelled context may be noticed
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Poll(fds, int(slice.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for a process to end: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}
