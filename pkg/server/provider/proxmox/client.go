// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/provider/cloud"
)

// maxResponse is the largest response in bytes. The resources of a large cluster have some
// MiB.
const maxResponse = 64 << 20

// client calls the API of a cluster (https://pve.proxmox.com/wiki/Proxmox_VE_API). Every node
// can serve every call.
type client struct {
	endpoints []*url.URL
	token     string
	http      *http.Client

	// mu guards current, the index of the endpoint that was last reached.
	mu      sync.Mutex
	current int
}

// apiError is an error response.
type apiError struct {
	call    string
	status  int
	message string
}

// Error returns the call and the response.
func (e *apiError) Error() string {
	return fmt.Sprintf("%s: HTTP %d: %s", e.call, e.status, e.message)
}

// Status codes of a node that could not reach another node.
const (
	statusNoConnection = 595
	statusNoResponse   = 596
)

// isDefinite reports whether the call has certainly changed nothing, because the API has
// rejected it before it began.
func (e *apiError) isDefinite() bool {
	return e.status >= 400 && e.status < 500 || e.status == http.StatusInternalServerError && e.message != ""
}

// is reports whether an error is a response whose message contains one of the texts. The
// texts must be in lower case.
func is(err error, texts ...string) bool {
	response, ok := errors.AsType[*apiError](err)
	return ok && containsAny(response.message, texts...)
}

func containsAny(message string, texts ...string) bool {
	message = strings.ToLower(message)
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(message, text) })
}

// isNotExist reports whether an error means that a virtual machine or a file does not exist.
// The API has no status code for this case.
func isNotExist(err error) bool {
	response, ok := errors.AsType[*apiError](err)
	return ok && (response.status == http.StatusNotFound || is(err, "does not exist", "no such file"))
}

// isUnreachable reports whether an error only means that a node does not respond.
func isUnreachable(err error) bool {
	response, ok := errors.AsType[*apiError](err)
	return ok && (response.status == statusNoConnection || response.status == statusNoResponse)
}

// get sends a request that reads.
func (c *client) get(ctx context.Context, path string, query url.Values, result any) error {
	return c.call(ctx, http.MethodGet, path, query, "", nil, result)
}

// remove sends a request that deletes.
func (c *client) remove(ctx context.Context, path string, query url.Values, result any) error {
	return c.call(ctx, http.MethodDelete, path, query, "", nil, result)
}

// post and put send requests that change something.
func (c *client) post(ctx context.Context, path string, form url.Values, result any) error {
	return c.call(ctx, http.MethodPost, path, nil, "application/x-www-form-urlencoded", []byte(form.Encode()), result)
}

func (c *client) put(ctx context.Context, path string, form url.Values, result any) error {
	return c.call(ctx, http.MethodPut, path, nil, "application/x-www-form-urlencoded", []byte(form.Encode()), result)
}

// call sends a request and decodes the data of its response.
func (c *client) call(ctx context.Context, method, path string, query url.Values, contentType string, body []byte, result any) error {
	name := method + " " + path
	response, err := c.send(ctx, method, path, query, contentType, body)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return fmt.Errorf("%s: read the response: %w", name, err)
	}
	if response.StatusCode != http.StatusOK {
		return newError(name, response, data)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(data, &struct {
		Data any `json:"data"`
	}{result}); err != nil {
		return fmt.Errorf("%s: decode the response: %w", name, err)
	}
	return nil
}

// send sends a request to the node that was last reached. It tries the next node only if
// there was no connection, because then no node has received the request.
func (c *client) send(ctx context.Context, method, path string, query url.Values, contentType string, body []byte) (*http.Response, error) {
	c.mu.Lock()
	first := c.current
	c.mu.Unlock()
	var errs []error
	for n := range c.endpoints {
		at := (first + n) % len(c.endpoints)
		target := c.endpoints[at].JoinPath("api2", "json", path)
		target.RawQuery = query.Encode()
		request, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "PVEAPIToken="+c.token)
		if contentType != "" {
			request.Header.Set("Content-Type", contentType)
		}
		response, err := c.http.Do(request)
		if err == nil {
			c.mu.Lock()
			c.current = at
			c.mu.Unlock()
			return response, nil
		}
		// The error also contains the query, which is not needed.
		if cause, ok := errors.AsType[*url.Error](err); ok {
			err = cause.Err
		}
		errs = append(errs, fmt.Errorf("%s: %w", c.endpoints[at].Host, err))
		if failure, ok := errors.AsType[*net.OpError](err); !ok || failure.Op != "dial" || ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// newError returns the error of a response. The message is in the body; older versions send
// it only in the status line. The errors of single parameters are in the body.
func newError(name string, response *http.Response, data []byte) error {
	var body struct {
		Message string            `json:"message"`
		Errors  map[string]string `json:"errors"`
	}
	_ = json.Unmarshal(data, &body) // a proxy may send something else
	message := strings.TrimSpace(body.Message)
	if message == "" {
		_, reason, _ := strings.Cut(response.Status, " ")
		if message = strings.TrimSpace(reason); message == http.StatusText(response.StatusCode) {
			message = ""
		}
	}
	for _, parameter := range slices.Sorted(maps.Keys(body.Errors)) {
		message += fmt.Sprintf(" (%s: %s)", parameter, strings.TrimSpace(body.Errors[parameter]))
	}
	err := &apiError{call: name, status: response.StatusCode, message: message}
	if response.StatusCode == http.StatusTooManyRequests {
		return fmt.Errorf("%w: %w", cloud.ErrThrottled, err)
	}
	return err
}

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
	// log is the end of the task's log, if the result does not say why a program has failed.
	log string
}

// Error returns the result.
func (e *taskError) Error() string {
	if e.log != "" {
		return fmt.Sprintf("task %s: %s: %s", e.task, e.exit, e.log)
	}
	return fmt.Sprintf("task %s: %s", e.task, e.exit)
}

// programFailed are texts of results that only say that a program has failed. What QEMU and qemu-img
// have printed is in the log of the task
// (https://git.proxmox.com/?p=qemu-server.git;a=blob;f=src/PVE/QemuServer.pm, vm_start;
// https://git.proxmox.com/?p=pve-common.git;a=blob;f=src/PVE/Tools.pm, run_command).
var programFailed = []string{"exited with code", "exit code", "got signal"}

const (
	// maxLogLines is how many lines at the end of a log are read.
	maxLogLines = 20
	// maxLog is how many bytes of them an error has.
	maxLog = 1000
)

// reason returns the end of a task's log, which is empty if the log cannot be read.
func (a *API) reason(ctx context.Context, task upid) string {
	lines, err := a.client.taskLog(ctx, task)
	if err != nil {
		return ""
	}
	text := strings.ToValidUTF8(strings.Join(lines[max(0, len(lines)-maxLogLines):], "; "), "?")
	return strings.ToValidUTF8(text[max(0, len(text)-maxLog):], "")
}

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
		failed := &taskError{task: task, exit: status.Exit}
		if containsAny(status.Exit, programFailed...) {
			failed.log = a.reason(ctx, task)
		}
		return true, failed
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
