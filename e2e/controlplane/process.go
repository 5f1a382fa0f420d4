// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// child is a process that this program has started.
type child struct {
	id     processID
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has exited
}

// launch starts a process and waits for it, so that it leaves no zombie.
func launch(cmd *exec.Cmd) (*child, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, exited: make(chan struct{})}
	// identify comes before Wait: a child that exits at once has an identity until then.
	id, _, err := identify(cmd.Process.Pid)
	go func() {
		_ = cmd.Wait() // the result is in cmd.ProcessState
		close(c.exited)
	}()
	if err != nil {
		c.kill()
		return nil, err
	}
	c.id = id
	return c, nil
}

// state returns the state of an exited process, such as "exit status 1" or
// "signal: killed".
func (c *child) state() string { return c.cmd.ProcessState.String() }

// kill kills the process and returns when it has exited.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // fails only when it has exited
	<-c.exited
}

// errNotRunning is the error for a recorded process that has exited, also when its id
// belongs to another process by now.
var errNotRunning = errors.New("not running")

// processID identifies a process for ever. The kernel reuses a process id, but not together with
// the time at which the process started.
type processID struct {
	PID int `json:"pid"`
	// StartTicks is when the process started, in clock ticks since boot
	// (field 22 of /proc/PID/stat).
	StartTicks uint64 `json:"startTicks"`
}

// awaitSuspension waits until all threads of a process are suspended. A thread notices the signal when
// the kernel schedules it next, and finishes a system call before.
func (id processID) awaitSuspension() error {
	err := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, stopTimeout, true, func(context.Context) (bool, error) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", id.PID))
		if err != nil {
			return false, err
		}
		for _, task := range tasks {
			fields, err := statOf(task)
			if errors.Is(err, errNotRunning) {
				continue
			}
			if err != nil {
				return false, err
			}
			// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
			if !strings.ContainsAny(fields[0], "TtZX") {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("suspend process %d: %w", id.PID, err)
	}
	return nil
}

// statOf returns the fields of a stat file of the kernel from the third on, at least 20, or the
// error errNotRunning.
func statOf(path string) ([]string, error) {
	stat, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, errNotRunning
	}
	if err != nil {
		return nil, err
	}
	// The second field is the command in parentheses and may itself contain spaces
	// and parentheses; the fields are counted from behind it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("%s has an unknown form: %q", path, stat)
	}
	return fields, nil
}

// identify returns the identity of the process that has pid now, and whether
// it still runs or only waits for its parent to read its state. Without such a process
// the error is errNotRunning.
func identify(pid int) (id processID, running bool, err error) {
	fields, err := statOf("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, errNotRunning) {
		return processID{}, false, err
	}
	if err != nil {
		return processID{}, false, fmt.Errorf("reading the state of process %d: %w", pid, err)
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
	// identify comes after the handle was opened, which stays with its process. Whether it runs
	// does not matter: waiting for an exited process returns at once, and the first thread may
	// have exited before others.
	if now, _, err := identify(id.PID); err != nil || now != id {
		p.close()
		return nil, errNotRunning
	}
	return p, nil
}

// running reports whether any thread of the process runs. The first thread may have exited
// before others, which still hold the ports of the process.
func (id processID) running() bool {
	now, running, err := identify(id.PID)
	if err != nil || now != id {
		return false
	}
	return running || !id.exited()
}

// exited reports whether all threads have exited
// (https://man7.org/linux/man-pages/man2/pidfd_open.2.html).
func (id processID) exited() bool {
	p, err := id.open()
	if err != nil {
		return errors.Is(err, errNotRunning)
	}
	defer p.close()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
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

// record is the content of components/NAME.json: how a component is run, and the process
// that was started last.
type record struct {
	Spec
	// Sequence is the component's place in the order of starting.
	Sequence int       `json:"sequence"`
	Process  processID `json:"process"`
}

// Components returns the components on record below dir in the order they
// were started in. They may belong to another program or have exited.
func Components(dir string) ([]*Component, error) {
	paths, err := filepath.Glob(recordPath(dir, "*"))
	if err != nil {
		return nil, err
	}
	var found []*Component
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		r, err := readRecord(dir, name)
		if err != nil {
			return nil, err
		}
		found = append(found, &Component{Spec: r.Spec, dir: dir, sequence: r.Sequence})
	}
	slices.SortFunc(found, func(a, b *Component) int { return cmp.Compare(a.sequence, b.sequence) })
	return found, nil
}

func recordPath(dir, name string) string { return filepath.Join(dir, "components", name+".json") }
func pidPath(dir, name string) string    { return filepath.Join(dir, "pids", name) }
func logPath(dir, name string) string    { return filepath.Join(dir, "logs", name+".log") }

func readRecord(dir, name string) (record, error) {
	var r record
	data, err := os.ReadFile(recordPath(dir, name))
	if err != nil {
		return r, fmt.Errorf("read the record of %s: %w", name, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read the record of %s: %w", name, err)
	}
	return r, nil
}

// write stores the record, and the bare process id beside it for use in shells.
func (r record) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(recordPath(dir, r.Name), append(data, '\n')); err != nil {
		return fmt.Errorf("record %s: %w", r.Name, err)
	}
	if err := replaceFile(pidPath(dir, r.Name), []byte(strconv.Itoa(r.Process.PID)+"\n")); err != nil {
		return fmt.Errorf("record %s: %w", r.Name, err)
	}
	return nil
}

func removePID(dir, name string) error {
	if err := os.Remove(pidPath(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// replaceFile writes path so that a reader never sees half of it. The file is
// readable by its owner only: arguments and environments may be private.
func replaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	next := path + ".next"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// logTail returns the last lines that were written to the log behind offset,
// for an error message.
func logTail(path string, offset int64) string {
	const lines, maxBytes = 15, 16 << 10
	file, err := os.Open(path)
	if err != nil {
		return "log: " + path
	}
	defer file.Close()
	if end, err := file.Seek(0, io.SeekEnd); err == nil {
		_, _ = file.Seek(max(offset, end-maxBytes), io.SeekStart)
	}
	data, _ := io.ReadAll(file)
	tail := strings.Split(strings.TrimSpace(string(data)), "\n")
	tail = tail[max(0, len(tail)-lines):]
	return fmt.Sprintf("last lines of %s:\n  %s", path, strings.Join(tail, "\n  "))
}
