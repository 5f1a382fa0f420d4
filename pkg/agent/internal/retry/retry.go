// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package retry repeats failed calls with growing, random delays, and limits how often a
// failure is logged.
package retry

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

const (
	firstDelay = 500 * time.Millisecond
	// lastDelay is short, so that agents connect soon after their server has started.
	lastDelay = 5 * time.Second
	// deniedDelay follows PermissionDenied: the server does not serve the instance, for
	// example because it is being deleted.
	deniedDelay = 30 * time.Second
	// unimplementedDelay follows Unimplemented: the version of the server lacks the method.
	unimplementedDelay = 5 * time.Minute
	// logInterval is how often the same failure is logged.
	logInterval = time.Minute
)

// ErrAgain makes Loop call the function again without a delay.
var ErrAgain = errors.New("again")

// Loop calls run until ctx is done. Between two calls it waits, unless run returned
// ErrAgain. A call that took longer than the longest delay begins the delays again. what is
// the subject of log messages: "Receiving files".
func Loop(ctx context.Context, what string, run func(context.Context) error) {
	delays := NewDelays(lastDelay)
	var failures Failures
	for ctx.Err() == nil {
		begin := time.Now()
		err := run(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrAgain):
			failures = Failures{}
			continue
		}
		if time.Since(begin) > lastDelay {
			delays.Reset()
			failures = Failures{}
		}
		delay := delays.NextBackOff()
		switch status.Code(err) {
		case codes.PermissionDenied:
			delay = deniedDelay
		case codes.Unimplemented:
			delay = unimplementedDelay
		}
		failures.Log(ctx, err, what, "retryIn", delay.Round(time.Millisecond))
		Wait(ctx, delay)
	}
}

// NewDelays returns random delays that grow to last, without an end.
func NewDelays(last time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(min(firstDelay, last)),
		backoff.WithMaxInterval(last),
		backoff.WithMaxElapsedTime(0),
	)
}

// Wait waits for a duration, or until ctx is done.
func Wait(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Failures logs failures, but the same one again only once in a while. The zero Failures
// is ready for use.
type Failures struct {
	// key is the text without digits: ports differ in each attempt.
	key string
	at  time.Time
}

func withoutDigits(r rune) rune {
	if unicode.IsDigit(r) {
		return -1
	}
	return r
}

// Log logs an error, which may be nil, under a message.
func (f *Failures) Log(ctx context.Context, err error, message string, keysAndValues ...any) {
	var text string
	if err != nil {
		text = err.Error()
	}
	key := strings.Map(withoutDigits, text)
	if key == f.key && time.Since(f.at) < logInterval {
		return
	}
	f.key, f.at = key, time.Now()
	logger := klog.FromContext(ctx)
	if err == nil {
		logger.V(2).Info(message+" ended", keysAndValues...)
		return
	}
	logger.Error(err, message+" failed", keysAndValues...)
}
