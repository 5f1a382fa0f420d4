// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	// minTaskInterval and maxTaskInterval bound the growing time between two reads of the
	// status of a task.
	minTaskInterval = 50 * time.Millisecond
	maxTaskInterval = 2 * time.Second
	// taskTimeout is how long one call waits for tasks. It leaves time for the other requests
	// of a call, which the server limits.
	taskTimeout = 12 * time.Second
)

// taskError is the result of a failed task.
type taskError struct {
	task upid
	exit string
}

// Error returns the result.
func (e *taskError) Error() string { return fmt.Sprintf("task %s: %s", e.task, e.exit) }

// isTaskError reports whether an error is the result of a failed task that contains one of
// the texts. The texts must be in lower case.
func isTaskError(err error, texts ...string) bool {
	failed, ok := errors.AsType[*taskError](err)
	return ok && containsAny(failed.exit, texts...)
}

// finished reports whether a task has finished. The error is a *taskError if it has failed.
func (a *API) finished(ctx context.Context, task upid) (bool, error) {
	status, err := a.client.task(ctx, task)
	switch {
	case err != nil:
		return false, err
	case status.Status != "stopped":
		return false, nil
	case status.Exit != "OK" && !strings.HasPrefix(status.Exit, "WARNINGS"):
		return true, &taskError{task: task, exit: status.Exit}
	}
	return true, nil
}

// await waits until a task has finished. The error wraps cloud.ErrInProgress if it still
// runs at until.
func (a *API) await(ctx context.Context, task upid, until time.Time) error {
	if task == "" {
		return nil
	}
	interval := minTaskInterval
	for {
		if done, err := a.finished(ctx, task); done || err != nil {
			return err
		}
		if err := sleep(ctx, interval, until); err != nil {
			return fmt.Errorf("task %s runs: %w", task, err)
		}
		interval = min(2*interval, maxTaskInterval)
	}
}

// sleep waits. The error wraps cloud.ErrInProgress if the wait would end after until.
func sleep(ctx context.Context, d time.Duration, until time.Time) error {
	if time.Now().Add(d).After(until) {
		return cloud.ErrInProgress
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// memo remembers the task of a step. A nil memo remembers nothing.
type memo struct {
	tasks map[string]upid
	step  string
}

// step returns the memo of a step.
func (l *launch) step(name string) *memo { return &memo{tasks: l.tasks, step: name} }

// begun returns the task, and whether it was started.
func (m *memo) begun() (task upid, begun bool) {
	if m == nil {
		return "", false
	}
	task, begun = m.tasks[m.step]
	return task, begun
}

// set remembers the task, or forgets a failed task.
func (m *memo) set(task upid, failed bool) {
	if m == nil {
		return
	}
	if delete(m.tasks, m.step); !failed {
		m.tasks[m.step] = task
	}
}

// run starts a task, unless an earlier call has started it, and waits until it has finished.
// If another task has locked the virtual machine for a moment, it tries again.
func (a *API) run(ctx context.Context, until time.Time, m *memo, start func() (upid, error)) error {
	for {
		task, begun := m.begun()
		var err error
		if !begun {
			task, err = start()
			m.set(task, err != nil)
		}
		if err == nil {
			err = a.await(ctx, task, until)
		}
		if _, failed := errors.AsType[*taskError](err); failed {
			m.set(task, true)
		}
		if !is(err, lockTimeout) && !isTaskError(err, lockTimeout) {
			return err
		}
		if late := sleep(ctx, lockRetryInterval, until); late != nil {
			return fmt.Errorf("%w: %w", late, err)
		}
	}
}

const (
	// lockTimeout is in the error message if a lock could not be acquired.
	lockTimeout = "got timeout"
	// alreadyRunning is in the error message if the virtual machine to start is running.
	alreadyRunning = "already running"
	// lockRetryInterval is the time between two attempts to acquire a lock.
	lockRetryInterval = time.Second
)
