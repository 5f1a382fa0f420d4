// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package deadline keeps a process that was paused from acting after the deadline
// of a context.
package deadline

import (
	"context"
	"net/http"
	"time"
)

// Check returns why ctx is done, or nil if it is not. Unlike ctx.Err it compares
// the deadline with the clock: when a paused process resumes, ctx.Err is nil until
// the timer of ctx has run. Call it immediately before an action that must not
// happen too late.
func Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if end, ok := ctx.Value(leaseKey{}).(func() time.Time); ok && !time.Now().Before(end()) {
		return context.DeadlineExceeded
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

type leaseKey struct{}

// WithLease returns a context for which Check returns an error once the time that end returns
// has passed. That time may become later. The caller must cancel the context at that time.
func WithLease(ctx context.Context, end func() time.Time) context.Context {
	return context.WithValue(ctx, leaseKey{}, end)
}

// Lease returns the end of the lease of ctx, which may become later, and false if ctx has no
// lease.
func Lease(ctx context.Context) (time.Time, bool) {
	end, ok := ctx.Value(leaseKey{}).(func() time.Time)
	if !ok {
		return time.Time{}, false
	}
	return end(), true
}

// HTTPClient sends HTTP requests and returns their responses, but sends no request whose
// context is done. It checks at the last moment: before it, the caller may have signed the
// request, waited for a retry, or been paused. It implements http.RoundTripper and the
// HTTPClient of the AWS SDK.
type HTTPClient func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (c HTTPClient) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := Check(request.Context()); err != nil {
		return nil, err
	}
	return c(request)
}

// Do implements the HTTPClient of the AWS SDK.
func (c HTTPClient) Do(request *http.Request) (*http.Response, error) {
	return c.RoundTrip(request)
}
