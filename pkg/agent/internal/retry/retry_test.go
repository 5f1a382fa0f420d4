// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package retry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// callsIn returns how often Loop calls a function in a time, on the clock of a bubble.
func callsIn(t *testing.T, duration time.Duration, run func() error) int {
	t.Helper()
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithTimeout(ctx, duration)
		defer cancel()
		Loop(ctx, "test", func(context.Context) error {
			calls++
			return run()
		})
	})
	return calls
}

func TestDelaysGrowToALimit(t *testing.T) {
	// Once they have grown, delays are between 2.5 s and 7.5 s.
	calls := callsIn(t, time.Hour, func() error { return errors.New("broken") })
	assert.Greater(t, calls, 3600/8)
	assert.Less(t, calls, 3600/2)
	// A stream that ends without an error, at once, again and again.
	assert.Less(t, callsIn(t, time.Hour, func() error { return nil }), 3600/2)
}

func TestDelaysBeginAgainAfterSuccess(t *testing.T) {
	calls := callsIn(t, time.Hour, func() error {
		time.Sleep(time.Minute)
		return errors.New("broken")
	})
	// Each call takes a minute, and each delay less than a second.
	assert.Equal(t, 60, calls)
}

func TestAgainDoesNotWait(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		Loop(ctx, "test", func(context.Context) error {
			if calls++; calls == 100 {
				cancel()
			}
			return ErrAgain
		})
		assert.Zero(t, time.Since(begin))
	})
	assert.Equal(t, 100, calls)
}

func TestMissingMethodIsCalledRarely(t *testing.T) {
	calls := callsIn(t, 59*time.Minute, func() error { return status.Error(codes.Unimplemented, "unknown method") })
	assert.Equal(t, 12, calls)
}

// A server that is not there for hours must not fill the disk.
func TestTheSameFailureIsLoggedOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx := klog.NewContext(t.Context(), logger)
		lines := func() int {
			return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "\n")
		}
		var failures Failures
		for port := range 10 {
			failures.Log(ctx, fmt.Errorf("read 127.0.0.1:%d: refused", 40000+port), "test")
			time.Sleep(5 * time.Second)
		}
		assert.Equal(t, 1, lines())
		failures.Log(ctx, errors.New("another"), "test")
		assert.Equal(t, 2, lines())
		time.Sleep(logInterval)
		failures.Log(ctx, errors.New("another"), "test")
		assert.Equal(t, 3, lines())
	})
}
