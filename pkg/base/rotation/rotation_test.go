// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 5, 2, 30, 0, 0, time.UTC)

// of returns a connected shard with so many instances that have been ready for an hour, the first
// of which are outdated, and with a grant of nothing.
func of(id string, size, outdated int32, changes ...func(*Shard)) Shard {
	s := Shard{ID: id, Size: size, Outdated: outdated, UpToDate: size - outdated, Connected: true, Grant: &Grant{}, InForce: &Grant{}}
	for n := range size {
		s.Instances = append(s.Instances, Instance{
			ID: fmt.Sprint(id, n), Outdated: n < outdated,
			Created: start.Add(-2 * time.Hour), Ready: true, ReadySince: start.Add(-time.Hour),
		})
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

func with(surge, upToDate int32) func(*Shard) {
	return func(s *Shard) {
		s.Grant = &Grant{MaxSurge: surge, UpToDate: upToDate}
		s.InForce = s.Grant
	}
}

func above(n int32) func(*Shard) { return func(s *Shard) { s.Above = n } }
func below(n int32) func(*Shard) { return func(s *Shard) { s.Below = n } }
func away(s *Shard)              { s.Connected = false }
func unread(s *Shard)            { s.Connected, s.Unread = false, true }
func without(s *Shard)           { s.Grant, s.InForce = nil, nil }

// unready sets the last instance to have no Ready Node, so long after its creation.
func unready(minutes int) func(*Shard) {
	return func(s *Shard) {
		i := &s.Instances[len(s.Instances)-1]
		i.Created, i.Ready, i.Problem = start.Add(-time.Duration(minutes)*time.Minute), false, "has no Node"
	}
}

func readyFor(d time.Duration) func(*Shard) {
	return func(s *Shard) {
		for n := range s.Instances {
			s.Instances[n].ReadySince = start.Add(-d)
		}
	}
}

func window(t *testing.T, schedule string) []Window {
	t.Helper()
	w, err := NewWindow(schedule, "", time.Hour)
	require.NoError(t, err)
	return []Window{w}
}

// text returns a grant as the tables have it.
func text(g Grant) string {
	s := fmt.Sprintf("%d/%d to %d", g.MaxSurge, g.MaxUnavailable, g.UpToDate)
	if !g.NotAfter.IsZero() {
		s += g.NotAfter.Format(" until 15:04")
	}
	return s
}

func TestGrants(t *testing.T) {
	surge, night, noon := Policy{MaxSurge: 1}, window(t, "0 2 * * *"), window(t, "0 12 * * *")
	for name, test := range map[string]struct {
		policy Policy
		shards []Shard
		want   []string
		stop   Reason
		// next is in minutes, 0 for never.
		next int
	}{
		"nothing is outdated":                 {surge, []Shard{of("a", 3, 0), of("b", 2, 0)}, []string{"0/0 to 0", "0/0 to 0"}, "", 0},
		"one shard":                           {surge, []Shard{of("a", 3, 3)}, []string{"1/0 to 3"}, "", 0},
		"fewer than shards":                   {surge, []Shard{of("a", 3, 0), of("b", 2, 1), of("c", 2, 2)}, []string{"0/0 to 0", "1/0 to 2", "0/0 to 0"}, "", 0},
		"one by one":                          {Policy{MaxSurge: 4}, []Shard{of("a", 3, 3), of("b", 3, 1), of("c", 3, 3)}, []string{"2/0 to 3", "1/0 to 3", "1/0 to 3"}, "", 0},
		"one of each kind":                    {Policy{MaxSurge: 1, MaxUnavailable: 1}, []Shard{of("a", 3, 3), of("b", 3, 3), of("c", 3, 3)}, []string{"1/0 to 3", "0/0 to 0", "0/1 to 3"}, "", 0},
		"more than is outdated":               {Policy{MaxSurge: 9}, []Shard{of("a", 3, 1), of("b", 3, 2)}, []string{"1/0 to 3", "2/0 to 3"}, "", 0},
		"a shard that finishes":               {surge, []Shard{of("a", 3, 0, with(1, 3), above(1)), of("b", 2, 2)}, []string{"1/0 to 0", "0/0 to 0"}, "", 0},
		"a shard that has finished":           {surge, []Shard{of("a", 3, 0, with(1, 3)), of("b", 2, 2)}, []string{"0/0 to 0", "0/0 to 0"}, "", 0},
		"a loss that is not in force yet":     {surge, []Shard{of("a", 3, 0, func(s *Shard) { s.InForce = &Grant{MaxSurge: 1} }), of("b", 2, 2)}, []string{"0/0 to 0", "0/0 to 0"}, "", 0},
		"a loss that is in force":             {surge, []Shard{of("a", 3, 0), of("b", 2, 2)}, []string{"0/0 to 0", "1/0 to 2"}, "", 0},
		"what leaves for other reasons":       {surge, []Shard{of("a", 3, 0, above(1)), of("b", 2, 2)}, []string{"0/0 to 0", "0/0 to 0"}, "", 0},
		"what is missing elsewhere":           {Policy{MaxSurge: 1, MaxUnavailable: 1}, []Shard{of("a", 3, 0, below(1)), of("b", 2, 2)}, []string{"0/0 to 0", "1/0 to 2"}, "", 0},
		"what health uses on two shards":      {surge, []Shard{of("a", 3, 1, above(1)), of("b", 2, 2, above(1))}, []string{"1/0 to 3", "0/0 to 0"}, "", 0},
		"in use without a grant, no room":     {surge, []Shard{of("a", 3, 1, above(1)), of("b", 2, 2, with(1, 2))}, []string{"0/0 to 0", "0/0 to 0"}, "", 0},
		"in use without a grant":              {surge, []Shard{of("a", 3, 1, above(1)), of("b", 2, 2)}, []string{"1/0 to 3", "0/0 to 0"}, "", 0},
		"a shard that is away counts":         {surge, []Shard{of("a", 3, 3, with(1, 3), away), of("b", 2, 2)}, []string{"1/0 to 3", "0/0 to 0"}, ShardUnreachable, 0},
		"a shard that is away uses more":      {Policy{MaxSurge: 2}, []Shard{of("a", 3, 3, with(1, 3), above(2), away), of("b", 2, 2)}, []string{"1/0 to 3", "0/0 to 0"}, ShardUnreachable, 0},
		"a shard that is away with nothing":   {surge, []Shard{of("a", 3, 3, away), of("b", 2, 2)}, []string{"0/0 to 0", "1/0 to 2"}, "", 0},
		"a shard that is away has no grant":   {surge, []Shard{of("a", 3, 3, away, without), of("b", 2, 2)}, []string{"0/0 to 0", "0/0 to 0"}, ShardUnreachable, 0},
		"a shard that was never read":         {Policy{MaxSurge: 9}, []Shard{of("a", 3, 3, unread), of("b", 2, 2, with(1, 2))}, []string{"0/0 to 0", "1/0 to 2"}, "", 0},
		"only a shard that was never read":    {Policy{MaxSurge: 9}, []Shard{of("a", 3, 3, unread), of("b", 2, 2)}, []string{"0/0 to 0", "0/0 to 0"}, NotSynced, 0},
		"shards without grants":               {surge, []Shard{of("a", 3, 3, without), of("b", 2, 2, without)}, []string{"1/0 to 3", "0/0 to 0"}, "", 0},
		"paused":                              {Policy{MaxSurge: 1, Paused: true}, []Shard{of("a", 3, 2, with(1, 3), above(1))}, []string{"1/0 to 0"}, Paused, 0},
		"paused, and nothing is moving":       {Policy{MaxSurge: 1, Paused: true}, []Shard{of("a", 3, 2, with(1, 3))}, []string{"0/0 to 0"}, Paused, 0},
		"paused, and a shard is away":         {Policy{MaxSurge: 2, Paused: true}, []Shard{of("a", 3, 2), of("b", 3, 0, with(1, 3), away)}, []string{"0/0 to 0", "1/0 to 0"}, Paused, 0},
		"paused, all others have finished":    {Policy{MaxSurge: 2, Paused: true}, []Shard{of("a", 3, 0), of("b", 3, 0, with(1, 3), away)}, []string{"0/0 to 0", "1/0 to 0"}, "", 0},
		"a state of the pool":                 {Policy{MaxSurge: 1, Blocked: &Stop{"DrainBlocked", ""}}, []Shard{of("a", 3, 2)}, []string{"0/0 to 0"}, "DrainBlocked", 0},
		"inside a window":                     {Policy{MaxSurge: 1, Windows: night}, []Shard{of("a", 3, 2)}, []string{"1/0 to 3 until 03:00"}, "", 30},
		"a window, and a shard is away":       {Policy{MaxSurge: 2, Windows: night}, []Shard{of("a", 3, 2), of("b", 3, 0, with(1, 3), away)}, []string{"1/0 to 3 until 03:00", "1/0 to 3 until 03:00"}, "", 30},
		"outside of the windows":              {Policy{MaxSurge: 1, Windows: noon}, []Shard{of("a", 3, 2)}, []string{"0/0 to 0"}, OutsideWindow, 570},
		"failed":                              {Policy{MaxSurge: 1, ProgressDeadline: 30 * time.Minute}, []Shard{of("a", 3, 2, with(1, 3), unready(30))}, []string{"0/0 to 0"}, Failed, 0},
		"not failed yet":                      {Policy{MaxSurge: 1, ProgressDeadline: 30 * time.Minute}, []Shard{of("a", 3, 2, with(1, 1), unready(29))}, []string{"1/0 to 1"}, "", 1},
		"not failed yet, nothing granted":     {Policy{MaxSurge: 1, ProgressDeadline: 30 * time.Minute}, []Shard{of("a", 3, 2, unready(29))}, []string{"0/0 to 0"}, "", 1},
		"an outdated instance is not ready":   {Policy{MaxSurge: 1, ProgressDeadline: 30 * time.Minute}, []Shard{of("a", 3, 3, unready(90))}, []string{"1/0 to 1"}, "", 0},
		"who looks at instances makes steps":  {Policy{MaxSurge: 2, ProgressDeadline: time.Hour}, []Shard{of("a", 9, 9)}, []string{"2/0 to 2"}, "", 0},
		"a step":                              {Policy{MaxSurge: 2, MinReady: time.Minute}, []Shard{of("a", 5, 4)}, []string{"2/0 to 3"}, "", 0},
		"a step goes on":                      {Policy{MaxSurge: 2, MinReady: time.Minute}, []Shard{of("a", 5, 3, with(2, 3), above(1), unready(1))}, []string{"2/0 to 3"}, "", 0},
		"a step is not ready for long enough": {Policy{MaxSurge: 2, MinReady: 5 * time.Minute}, []Shard{of("a", 5, 2, with(2, 3), readyFor(2*time.Minute))}, []string{"2/0 to 3"}, "", 3},
		"the next step":                       {Policy{MaxSurge: 2, MinReady: time.Minute}, []Shard{of("a", 5, 2, with(2, 3))}, []string{"2/0 to 5"}, "", 0},
		"a shard that is away is not ready":   {Policy{MaxSurge: 2, MinReady: time.Minute}, []Shard{of("a", 5, 2), of("b", 2, 0, unready(1), away)}, []string{"0/0 to 0", "0/0 to 0"}, "", 0},
		"a step, and a shard was never read":  {Policy{MaxSurge: 2, MinReady: time.Minute}, []Shard{of("a", 5, 2, with(2, 3)), of("b", 2, 0, unread)}, []string{"2/0 to 3", "0/0 to 0"}, "", 0},
		"another shard is not ready":          {Policy{MaxSurge: 2, MinReady: time.Minute}, []Shard{of("a", 5, 2), of("b", 2, 0, unready(1))}, []string{"0/0 to 0", "0/0 to 0"}, "", 0},
		"a policy that gets steps":            {Policy{MaxSurge: 2, MinReady: time.Minute}, []Shard{of("a", 9, 8, with(2, 9), unready(1))}, []string{"2/0 to 3"}, "", 0},
		"outdated instances must be ready":    {Policy{MaxSurge: 2, AllReady: true}, []Shard{of("a", 5, 5, unready(90))}, []string{"0/0 to 0"}, "", 0},
		"the canary":                          {Policy{MaxSurge: 3, Canary: 2, Bake: time.Hour}, []Shard{of("a", 5, 5), of("b", 5, 5)}, []string{"3/0 to 2", "0/0 to 0"}, "", 0},
		"the canary bakes":                    {Policy{MaxSurge: 3, Canary: 2, Bake: 2 * time.Hour}, []Shard{of("a", 5, 3), of("b", 5, 5)}, []string{"0/0 to 0", "0/0 to 0"}, Baking, 60},
		"the canary is done":                  {Policy{MaxSurge: 3, Canary: 2, Bake: time.Hour}, []Shard{of("a", 5, 3), of("b", 5, 5)}, []string{"2/0 to 4", "1/0 to 1"}, "", 0},
		"the canary is more than the shard":   {Policy{MaxSurge: 3, Canary: 9, Bake: time.Hour}, []Shard{of("a", 5, 0), of("b", 5, 5)}, []string{"0/0 to 0", "3/0 to 3"}, "", 0},
		"the shard of the canary is away":     {Policy{MaxSurge: 3, Canary: 2}, []Shard{of("a", 5, 3, away), of("b", 5, 5)}, []string{"0/0 to 0", "0/0 to 0"}, Baking, 0},
		"shard by shard":                      {Policy{MaxSurge: 3, ShardByShard: true}, []Shard{of("a", 5, 2), of("b", 5, 5)}, []string{"2/0 to 5", "0/0 to 0"}, "", 0},
		"shard by shard, the first leaves":    {Policy{MaxSurge: 3, ShardByShard: true}, []Shard{of("a", 5, 0, with(2, 5), above(1)), of("b", 5, 5)}, []string{"1/0 to 0", "0/0 to 0"}, Baking, 0},
		"shard by shard, the first bakes":     {Policy{MaxSurge: 3, ShardByShard: true, Bake: 2 * time.Hour}, []Shard{of("a", 5, 0), of("b", 5, 5)}, []string{"0/0 to 0", "0/0 to 0"}, Baking, 60},
		"shard by shard, the first is away":   {Policy{MaxSurge: 3, ShardByShard: true}, []Shard{of("a", 5, 0, away), of("b", 5, 5)}, []string{"0/0 to 0", "0/0 to 0"}, ShardUnreachable, 0},
		"shard by shard, the next":            {Policy{MaxSurge: 3, ShardByShard: true, Bake: time.Hour}, []Shard{of("a", 5, 0), of("b", 5, 5), of("c", 5, 5)}, []string{"0/0 to 0", "3/0 to 5", "0/0 to 0"}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := Grants(test.policy, test.shards, start)
			var grants []string
			for _, g := range got.Grants {
				grants = append(grants, text(g))
			}
			assert.Equal(t, test.want, grants)
			var stop Reason
			if got.Stop != nil {
				stop = got.Stop.Reason
			}
			assert.Equal(t, test.stop, stop, "%v", got.Stop)
			var next time.Time
			if test.next > 0 {
				next = start.Add(time.Duration(test.next) * time.Minute)
			}
			assert.Equal(t, next, got.Next)
		})
	}
}

// A grant is for the target that its server has reported: a step towards another one does not go on,
// and nothing is granted for both.
func TestGrantsAreForATarget(t *testing.T) {
	towards := func(grant, reported string) func(*Shard) {
		return func(s *Shard) {
			s.Grant = &Grant{MaxSurge: 2, UpToDate: 4, Target: grant}
			s.InForce, s.Target = s.Grant, reported
		}
	}
	steps := Policy{MaxSurge: 2, ProgressDeadline: time.Hour}
	for name, test := range map[string]struct {
		policy Policy
		shard  Shard
		want   Grant
	}{
		"one grant":                      {Policy{MaxSurge: 2}, of("a", 5, 5, towards("old", "new")), Grant{MaxSurge: 2, UpToDate: 5, Target: "new"}},
		"a step goes on":                 {steps, of("a", 5, 2, towards("new", "new"), unready(1)), Grant{MaxSurge: 2, UpToDate: 4, Target: "new"}},
		"a step towards the last target": {steps, of("a", 5, 2, towards("old", "new"), unready(1), above(1)), Grant{MaxSurge: 1}},
		"the first step":                 {steps, of("a", 5, 5, towards("old", "new")), Grant{MaxSurge: 2, UpToDate: 2, Target: "new"}},
		"away":                           {steps, of("a", 5, 2, towards("old", "new"), away), Grant{MaxSurge: 2, UpToDate: 4, Target: "old"}},
		"nothing is left":                {steps, of("a", 5, 0, towards("new", "new")), Grant{}},
	} {
		assert.Equal(t, test.want, Grants(test.policy, []Shard{test.shard}, start).Grants[0], name)
	}
}

// A window that has closed leaves grants that have ended.
func TestAClosedWindowIsNoWrite(t *testing.T) {
	ended := &Grant{MaxSurge: 2, UpToDate: 5, NotAfter: start}
	for _, n := range []int32{0, 1, 2} {
		shard := of("a", 5, 3, above(n), func(s *Shard) { s.Grant, s.InForce = ended, ended })
		got := Grants(Policy{MaxSurge: 2, Windows: window(t, "30 1 * * *")}, []Shard{shard}, start)
		assert.Equal(t, *ended, got.Grants[0])
		assert.Equal(t, OutsideWindow, got.Stop.Reason)
	}
}

func TestMessagesOfStops(t *testing.T) {
	policy := Policy{MaxSurge: 1, ProgressDeadline: 30 * time.Minute}
	got := Grants(policy, []Shard{of("a", 3, 2, unready(30)), of("b", 2, 1, unready(40))}, start)
	assert.Equal(t, "instance a2 on shard a was created at 2026-01-05T02:00:00Z and has no Node; and 1 more", got.Stop.Message)
	got = Grants(policy, []Shard{of("b", 2, 1, unready(40))}, start)
	assert.Equal(t, "instance b1 on shard b was created at 2026-01-05T01:50:00Z and has no Node", got.Stop.Message)
	got = Grants(Policy{MaxSurge: 1, Windows: window(t, "0 12 * * *")}, []Shard{of("a", 3, 2)}, start)
	assert.Equal(t, "the next window opens at 2026-01-05T12:00:00Z", got.Stop.Message)
	got = Grants(Policy{MaxSurge: 3, Canary: 2, Bake: 2 * time.Hour}, []Shard{of("a", 5, 3)}, start)
	assert.Equal(t, "2 instances of shard a are to be ready for 2h0m0s before others are replaced", got.Stop.Message)
	got = Grants(Policy{MaxSurge: 3, ShardByShard: true, Bake: 2 * time.Hour}, []Shard{of("a", 5, 0), of("b", 5, 5)}, start)
	assert.Equal(t, "the instances of these shards are to be ready for 2h0m0s before shard b begins: a", got.Stop.Message)
	assert.True(t, slices.ContainsFunc(got.Grants, func(g Grant) bool { return g == Grant{} }))
}
