// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"testing"

	"nstance.dev/operator/pkg/testing/tier"
)

// SkipUnlessFull skips a test that only make test-full runs.
func SkipUnlessFull(t testing.TB) {
	t.Helper()
	if !tier.Full() {
		t.Skip("make test-full runs this test")
	}
}
