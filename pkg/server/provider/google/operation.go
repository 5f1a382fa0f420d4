// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	// minInterval and maxInterval bound the growing time between two reads of an operation.
	minInterval = 250 * time.Millisecond
	maxInterval = 2 * time.Second
	// operationTimeout is how long one call waits for an operation. It leaves time for the
	// rest of the call within the server's limit of it.
	operationTimeout = 12 * time.Second
)

// statusDone is the status of an operation that has finished.
const statusDone = "DONE"

// operationFailure is the result of an operation that has failed.
type operationFailure struct {
	name     string
	codes    []string
	messages []string
}

// Error returns the codes and messages.
func (f *operationFailure) Error() string {
	return fmt.Sprintf("operation %s: %s: %s", f.name, strings.Join(f.codes, ", "), strings.Join(f.messages, "; "))
}

// has reports whether the operation has failed with a code that begins with one of the
// prefixes: some have a variant that ends in _WITH_DETAILS.
func (f *operationFailure) has(prefixes ...string) bool {
	return slices.ContainsFunc(f.codes, func(code string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(code, prefix) })
	})
}

// isFailure reports whether an error is that of an operation that has failed.
func isFailure(err error) bool {
	_, failed := errors.AsType[*operationFailure](err)
	return failed
}

// failure returns why an operation has failed, nil if it has not.
func (o operation) failure() error {
	f := &operationFailure{name: o.Name}
	if o.Error != nil {
		for _, one := range o.Error.Errors {
			f.codes, f.messages = append(f.codes, one.Code), append(f.messages, one.Message)
		}
	}
	if len(f.codes) == 0 && o.HTTPErrorStatus >= 400 {
		f.codes, f.messages = []string{fmt.Sprintf("HTTP_%d", o.HTTPErrorStatus)}, []string{o.HTTPErrorMessage}
	}
	if len(f.codes) == 0 {
		return nil
	}
	return f
}

// await waits until an operation has finished. The error is an *operationFailure if it has
// failed, and wraps cloud.ErrInProgress if it runs at a time.
func (a *API) await(ctx context.Context, op operation, until time.Time) error {
	interval := minInterval
	for op.Status != statusDone {
		if op.Name == "" {
			return errors.New("the response has no operation")
		}
		if time.Now().Add(interval).After(until) {
			return fmt.Errorf("operation %s runs: %w", op.Name, cloud.ErrInProgress)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
		interval = min(2*interval, maxInterval)
		next, err := a.operation(ctx, op.Name)
		switch {
		case googleapi.IsThrottled(err):
			interval = maxInterval
			continue // is read again
		case err != nil:
			return fmt.Errorf("read operation %s: %w", op.Name, err)
		}
		op = next
	}
	return op.failure()
}
