// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"slices"
	"strings"
	"testing"
)

func TestSortCandidates(t *testing.T) {
	annotated := func(id, shard, at string) Candidate {
		return Candidate{ID: id, Shard: shard, Annotated: true, Annotation: at}
	}
	deleting := func(id, shard string) Candidate { return Candidate{ID: id, Shard: shard} }
	for name, test := range map[string]struct {
		candidates []Candidate
		change     func([]Shard)
		want       string
	}{
		"none":                       {nil, nil, ""},
		"the annotated one":          {[]Candidate{annotated("a2", "a", "now")}, nil, "a2"},
		"the earliest first":         {[]Candidate{annotated("a1", "a", "2026-11-21 10:00:02"), annotated("b1", "b", "2026-11-21 10:00:01")}, nil, "b1 a1"},
		"of the same time by name":   {[]Candidate{annotated("b2", "b", ""), annotated("a1", "a", ""), annotated("b1", "b", "")}, nil, "a1 b1 b2"},
		"the ones in deletion later": {[]Candidate{deleting("b2", "b"), deleting("b1", "b"), annotated("a1", "a", "")}, nil, "a1 b1 b2"},
		"one that an earlier scale-down selected": {[]Candidate{annotated("a1", "a", ""), annotated("a2", "a", "")}, func(shards []Shard) {
			shards[1].RemoveFirst = []string{"a1"}
		}, "a2"},
		"one that was terminated and replaced": {[]Candidate{deleting("a9", "a"), annotated("a2", "a", "")}, nil, "a2"},
		"terminating ones": {[]Candidate{deleting("a1", "a"), deleting("a2", "a")}, func(shards []Shard) {
			shards[1].Reported.Instances[0].Terminating = true
			shards[1].Reported.Instances[1].Terminating = true
		}, ""},
		"on a shard that has not synced none is known to be terminated": {[]Candidate{annotated("a9", "a", "")}, func(shards []Shard) {
			shards[1].Synced, shards[1].Reported = false, nil
		}, "a9"},
		"nor on a server that lists none": {[]Candidate{annotated("a9", "a", "")}, func(shards []Shard) {
			shards[1].Reported = &Group{}
		}, "a9"},
		"one with two Machines once":                 {[]Candidate{annotated("a1", "a", "2"), annotated("b1", "b", "1"), deleting("a1", "a")}, nil, "b1 a1"},
		"one on a shard that the pool does not name": {[]Candidate{annotated("c1", "c", "")}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			shards := []Shard{
				{ID: "b", Size: 2, HasShardGroup: true, Synced: true, Reported: groupOf("b1", "b2")},
				{ID: "a", Size: 2, HasShardGroup: true, Synced: true, Reported: groupOf("a1", "a2")},
			}
			if test.change != nil {
				test.change(shards)
			}
			var got []string
			for _, candidate := range sortCandidates(shards, test.candidates) {
				got = append(got, candidate.ID)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

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

// Selected instances are written together with the size and stay with it. With a
// later size those are dropped that are terminated or no longer surplus.
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
