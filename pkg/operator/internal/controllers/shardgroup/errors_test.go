// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"testing"

	"nstance.dev/operator/pkg/operator/shard"
)

func TestProviderErrorsAreVisibleUntilTheGroupHasItsSize(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(changed(reported(), func(g *shard.Group) { g.ActualSize, g.ProviderIDs = 2, []string{"i-1", "i-2"} }))
	h.Expect(writeStatus)
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", Message: "out of capacity"})
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "unknown", Message: "out of capacity"})
	h.Expect(writeStatus)
	if got, want := h.conditions(), "Ready=False ProviderError: out of capacity"; !slices.Contains(got, want) {
		t.Errorf("the conditions are %q, want %q", got, want)
	}
	if got, want := h.Events(), []string{"Warning ProviderError out of capacity"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	// The same words again change nothing.
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", Message: "out of capacity"})
	h.Expect()

	h.setGroup(reported())
	h.Expect(writeStatus)
	if got := h.conditions(); !slices.Contains(got, "Ready=True Ready: ") {
		t.Errorf("the conditions are %q", got)
	}
	// It is over, and not said again when the group scales next.
	h.setGroup(changed(reported(), func(g *shard.Group) { g.ActualSize, g.ProviderIDs = 2, []string{"i-1", "i-2"} }))
	h.Expect(writeStatus)
	if got, want := h.conditions(), "Ready=False Scaling: 2 of 3 instances are running"; !slices.Contains(got, want) {
		t.Errorf("the conditions are %q, want %q", got, want)
	}
}
