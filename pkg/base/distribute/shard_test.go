// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestShortfall(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Shard)
		want   shortfall
	}{
		"nothing":                    {func(*Shard) {}, shortfall{}},
		"one that is pending":        {func(s *Shard) { s.Reported.Instances[2].Pending = true }, shortfall{0, []string{"a3"}}},
		"one that was not sent":      {func(s *Shard) { s.Size = 4 }, shortfall{notYetSent: 1}},
		"both":                       {func(s *Shard) { s.Size, s.Reported.Instances[2].Pending = 5, true }, shortfall{2, []string{"a3"}}},
		"the group":                  {func(s *Shard) { s.Reported = nil }, shortfall{notYetSent: 3}},
		"a shard that is not synced": {func(s *Shard) { s.Synced, s.Reported = false, nil }, shortfall{}},
		"a server that lists none":   {func(s *Shard) { s.Reported = &Group{} }, shortfall{}},
		"the shard group":            {func(s *Shard) { s.HasShardGroup = false }, shortfall{}},
		"a terminating one":          {func(s *Shard) { s.Reported.Instances[0].Terminating = true }, shortfall{}},
		"a replacement":              {func(s *Shard) { s.Size, s.Reported.Size, s.Reported.Instances[2].Pending = 2, 2, true }, shortfall{}},
		"the newest of two of which one is a replacement": {func(s *Shard) {
			s.Size, s.Reported.Size = 2, 2
			s.Reported.Instances[1].Pending, s.Reported.Instances[2].Pending = true, true
		}, shortfall{0, []string{"a3"}}},
		"one that was selected before": {func(s *Shard) { s.Size, s.RemoveFirst = 2, []string{"a1"} }, shortfall{}},
		"a pending candidate": {func(s *Shard) {
			s.Reported.Instances[0].Pending, s.Reported.Instances[2].Pending = true, true
		}, shortfall{0, []string{"a3"}}},
		"a size that is being lowered": {func(s *Shard) { s.Reported.Size = 5 }, shortfall{}},
	} {
		t.Run(name, func(t *testing.T) {
			shard := Shard{ID: "a", Size: 3, HasShardGroup: true, Synced: true, Reported: groupOf("a1", "a2", "a3")}
			test.change(&shard)
			got := shard.shortfall([]Candidate{{Shard: "a", ID: "a1"}, {Shard: "b", ID: "a3"}})
			if got.notYetSent != test.want.notYetSent || !slices.Equal(got.pending, test.want.pending) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// What was not sent needs no name, and the newest pending instance is removed first.
func TestShortfallRemove(t *testing.T) {
	missing := shortfall{2, []string{"a1", "a2"}}
	for n, want := range [][]string{nil, nil, nil, {"a2"}, {"a1", "a2"}, {"a1", "a2"}} {
		if got := missing.remove(int32(n)); !slices.Equal(got, want) {
			t.Errorf("for %d got %v, want %v", n, got, want)
		}
	}
}

// Selected instances are written together with the size and stay with it. A later size
// drops instances that are terminated or no longer surplus.
func TestNextRemoveFirst(t *testing.T) {
	shard := Shard{ID: "a", Size: 3, HasShardGroup: true, RemoveFirst: []string{"a1", "a2"}, Synced: true, Reported: groupOf("a2", "a3", "a4")}
	expect := func(when string, size int32, selected []string, want ...string) {
		t.Helper()
		if got := shard.NextRemoveFirst(size, selected); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	expect("with the same size", 3, nil, "a1", "a2")
	expect("with one less", 2, []string{"a4"}, "a2", "a4")
	expect("with one more", 4, nil)
	shard.Reported = groupOf("a2", "a3", "a4", "a5", "a6")
	expect("with one more, and five instances", 4, nil, "a2")
	shard.Synced = false
	expect("without knowing the instances", 4, nil, "a1", "a2")
	if !slices.Equal(shard.RemoveFirst, []string{"a1", "a2"}) {
		t.Error("the argument was changed")
	}
}

func TestBeingRemoved(t *testing.T) {
	draining := groupOf("a", "b", "c")
	draining.Instances[0].Draining, draining.Instances[1].Terminating = true, true
	for name, test := range map[string]struct {
		shard Shard
		want  int32
		known bool
	}{
		"nothing":                   {Shard{Size: 3, Synced: true, Reported: groupOf("a", "b", "c")}, 0, true},
		"not terminated yet":        {Shard{Size: 1, Synced: true, Reported: groupOf("a", "b", "c")}, 2, true},
		"replaced ones":             {Shard{Size: 3, Synced: true, Reported: draining}, 2, true},
		"replaced ones and surplus": {Shard{Size: 0, Synced: true, Reported: draining}, 3, true},
		"not all exist":             {Shard{Size: 5, Synced: true, Reported: groupOf("a")}, 0, true},
		"no group":                  {Shard{Size: 5, Synced: true}, 0, true},
		"not synced":                {Shard{Size: 5}, 0, false},
		"not configured":            {Shard{Size: 5, Fixed: true}, 0, true},
		"a server that does not list its instances": {Shard{Size: 2, Synced: true, Reported: &Group{Size: 2, Running: 4}}, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, known := test.shard.BeingRemoved()
			assert.Equal(t, test.want, got)
			assert.Equal(t, test.known, known)
		})
	}
}
