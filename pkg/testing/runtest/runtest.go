// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package runtest runs functions in the background of a test.
package runtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// Start runs functions with a context whose logger writes to the test. stop, or the end of
// the test, cancels the context and waits for the functions.
func Start(t testing.TB, functions ...func(context.Context)) (stop func()) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig())
	ctx, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(t.Context()), logger))
	var running sync.WaitGroup
	for _, run := range functions {
		running.Go(func() { run(ctx) })
	}
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// Timeout bounds how long a test waits for a condition. It is long because machines may be
// busy.
const Timeout = 3 * time.Minute

// Eventually waits until condition returns true, and ends the test when it does not
// within Timeout.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, Timeout, true,
		func(context.Context) (bool, error) { return condition(), nil })
	require.NoError(t, err, "after %s it is not true that %s", Timeout, what)
}
