// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package require ends a test that cannot go on. Only tests import it.
package require

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Timeout bounds what a test waits for. It is long because machines may be busy.
const Timeout = 3 * time.Minute

// NoError ends the test if err is not nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until condition returns true, and ends the test when it does not
// within Timeout.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, Timeout, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("after %s it is not true that %s", Timeout, what)
	}
}
