// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package stock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

var (
	key  = instance.GroupKey{Tenant: "default", Group: "workers"}
	noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

// group returns a group with candidates of these hashes.
func group(hashes ...string) *groups.Group {
	g := &groups.Group{Key: key}
	for _, hash := range hashes {
		g.Variants = append(g.Variants, groups.Variant{Name: hash, InfraConfigHash: hash})
	}
	return g
}

func running(id, hash string) instance.Instance {
	return instance.Instance{Record: instance.Record{ID: id, InfraConfigHash: hash, ProviderID: "vm-" + id}, Known: true, State: instance.Running}
}

// The message stays the same until an instance that came up disproves it, whatever the clock says.
func TestMessageIsAState(t *testing.T) {
	var s Stock
	s.Observe(group("a", "b"), noon)
	present := []instance.Instance{running("1", "a"), running("2", "b")}
	assert.Empty(t, s.Message(key, "a", present))
	assert.True(t, s.Rejected(key, "a", "none", present, noon))
	assert.False(t, s.Rejected(key, "a", "none", present, noon.Add(time.Hour)), "the same again")
	assert.Equal(t, "none", s.Message(key, "a", present))
	assert.Empty(t, s.Message(key, "b", present))
	accepted := instance.Instance{Record: instance.Record{ID: "3", InfraConfigHash: "a"}, Known: true, State: instance.Pending}
	assert.Equal(t, "none", s.Message(key, "a", append(present, accepted)), "the cloud may reject it later")
	assert.Equal(t, "none", s.Message(key, "a", append(present, running("3", "b"))))
	assert.Empty(t, s.Message(key, "a", append(present, running("3", "a"))))
}

func TestSinceCountsFromTheLastRejection(t *testing.T) {
	var s Stock
	_, known := s.Since(key, "a")
	assert.False(t, known)
	s.Observe(group("a", "b"), noon)
	s.Observe(group("a", "b"), noon.Add(time.Minute))
	since := func(hash string) time.Time {
		at, known := s.Since(key, hash)
		assert.True(t, known)
		return at
	}
	assert.Equal(t, noon, since("a"), "when the candidate was first seen")
	s.Rejected(key, "a", "none", nil, noon.Add(2*time.Minute))
	assert.Equal(t, noon.Add(2*time.Minute), since("a"))
	assert.Equal(t, noon, since("b"))
	// A candidate that leaves is forgotten, and so is a group.
	s.Observe(group("b"), noon.Add(3*time.Minute))
	s.Observe(group("a", "b"), noon.Add(4*time.Minute))
	assert.Equal(t, noon.Add(4*time.Minute), since("a"))
	assert.Empty(t, s.Message(key, "a", nil))
	s.Observe(group(), noon)
	assert.Empty(t, s.byGroup)
	s.Observe(group("a"), noon)
	s.Remove(key)
	assert.Empty(t, s.byGroup)
	assert.False(t, s.Rejected(key, "a", "none", nil, noon), "the group is gone")
}

func TestUses(t *testing.T) {
	var s Stock
	g := group("a", "b")
	g.Variants[0].Max = new(int32(1))
	s.Observe(g, noon)
	onDemand, draining := running("3", "a"), running("4", "b")
	onDemand.OnDemand = true
	draining.Drain = &instance.Drain{}
	present := []instance.Instance{running("1", "a"), running("2", "b"), onDemand, draining, running("5", "old")}
	s.Rejected(key, "b", "none", present, noon)
	assert.Equal(t, []Use{{Variant: &g.Variants[0], Instances: 1}, {Variant: &g.Variants[1], Instances: 1, Unavailable: "none"}}, s.Uses(g, present))
	assert.Nil(t, s.Uses(group(), present))
	var none *Stock
	assert.Equal(t, 1, none.Uses(g, present)[0].Instances)
}
