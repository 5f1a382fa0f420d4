// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/agent/internal/retry"
)

const (
	// readinessInterval is how often a machine that is not ready is checked.
	readinessInterval = 2 * time.Second
	// readinessTimeout bounds a request to the URL.
	readinessTimeout = 5 * time.Second
)

// readiness learns when the machine is ready for what it is for: a file exists, or a URL answers.
// A machine that has been ready once stays so, also after a restart: until then the server gives
// it up after a while, and a machine that has served must not be given up because its kubelet is
// restarted.
type readiness struct {
	file, url string
	identity  *identity.Identity
	client    *http.Client

	mu sync.Mutex
	// reason is why the machine is not ready, "" once it is.
	reason string
}

// newReadiness returns the readiness of a machine that is ready without file and url.
func newReadiness(file, url string, id *identity.Identity) (*readiness, error) {
	r := &readiness{file: file, url: url, identity: id, client: &http.Client{Timeout: readinessTimeout}}
	if file == "" && url == "" {
		return r, nil
	}
	wasReady, err := id.WasReady()
	if err != nil {
		return nil, fmt.Errorf("read whether the machine has been ready: %w", err)
	}
	if !wasReady {
		r.reason = "it has not been checked yet"
	}
	return r, nil
}

// Reason returns why the machine is not ready, "" once it is.
func (r *readiness) Reason() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// Run checks until the machine is ready, then calls changed, and returns. It returns early when ctx
// is done.
func (r *readiness) Run(ctx context.Context, changed func()) {
	var failures retry.Failures
	for r.Reason() != "" && ctx.Err() == nil {
		err := r.check(ctx)
		if err == nil {
			err = r.identity.SetReady()
		}
		if err == nil {
			klog.FromContext(ctx).Info("The machine is ready")
			r.set("")
			changed()
			return
		}
		failures.Log(ctx, err, "Readiness check")
		r.set(err.Error())
		retry.Wait(ctx, readinessInterval)
	}
}

func (r *readiness) set(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reason = reason
}

// check returns why the machine is not ready.
func (r *readiness) check(ctx context.Context) error {
	if r.file != "" {
		_, err := os.Stat(r.file)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("file %s does not exist", r.file)
		}
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return err
	}
	response, err := r.client.Do(request)
	if located, ok := errors.AsType[*url.Error](err); ok {
		// A password in the URL must not reach the server.
		err = located.Err
	}
	if err != nil {
		return fmt.Errorf("the URL of the readiness does not answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("the URL of the readiness answers %s", response.Status)
	}
	return nil
}
