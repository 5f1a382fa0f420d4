// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Timeout bounds what a test waits for. It is long because machines may be busy.
const Timeout = 3 * time.Minute

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
