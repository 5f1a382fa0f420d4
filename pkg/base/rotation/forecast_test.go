// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The instances of the table became ready an hour after they were created, unless they have another
// pace. It is 2:30, and the windows of night are open from 2:00 to 3:00.
func TestForecast(t *testing.T) {
	pace := func(d time.Duration) func(*Shard) {
		return func(s *Shard) {
			for n := range s.Instances {
				s.Instances[n].ReadySince = s.Instances[n].Created.Add(d)
			}
		}
	}
	night := window(t, "0 2 * * *")
	for name, test := range map[string]struct {
		policy Policy
		shards []Shard
		end    time.Duration
		steps  int
		inTime bool
	}{
		"nothing is outdated":            {Policy{MaxSurge: 1}, []Shard{of("a", 3, 0)}, 0, 0, true},
		"no windows, time enough":        {Policy{MaxSurge: 1}, []Shard{of("a", 3, 2, pace(10*time.Minute))}, 20 * time.Minute, 2, true},
		"no windows, a minute less":      {Policy{MaxSurge: 1}, []Shard{of("a", 3, 2, pace(10*time.Minute))}, 19 * time.Minute, 2, false},
		"several at once":                {Policy{MaxSurge: 2, MaxUnavailable: 1}, []Shard{of("a", 5, 4, pace(10*time.Minute)), of("b", 3, 3)}, 30 * time.Minute, 3, true},
		"instances must be ready":        {Policy{MaxSurge: 1, MinReady: 5 * time.Minute}, []Shard{of("a", 3, 2, pace(10*time.Minute))}, 29 * time.Minute, 2, false},
		"no instance is up to date":      {Policy{MaxSurge: 1}, []Shard{of("a", 2, 2)}, 20 * time.Minute, 2, true},
		"a Node that was ready again":    {Policy{MaxSurge: 1}, []Shard{of("a", 2, 1, pace(30*time.Hour))}, time.Hour, 1, true},
		"a Node without a difference":    {Policy{MaxSurge: 1}, []Shard{of("a", 2, 1, pace(0))}, 59 * time.Second, 1, false},
		"the rest of this window":        {Policy{MaxSurge: 1, Windows: night}, []Shard{of("a", 4, 3, pace(10*time.Minute))}, 20 * time.Hour, 3, true},
		"it is too short":                {Policy{MaxSurge: 1, Windows: night}, []Shard{of("a", 5, 4, pace(10*time.Minute))}, 20 * time.Hour, 4, false},
		"with the next window":           {Policy{MaxSurge: 1, Windows: night}, []Shard{of("a", 5, 4, pace(10*time.Minute))}, 24 * time.Hour, 4, true},
		"an end in the middle of it":     {Policy{MaxSurge: 1, Windows: night}, []Shard{of("a", 9, 8, pace(10*time.Minute))}, 24*time.Hour + 19*time.Minute, 8, false},
		"a pause may end at any time":    {Policy{MaxSurge: 1, Paused: true}, []Shard{of("a", 3, 2, pace(10*time.Minute))}, 20 * time.Minute, 2, true},
		"a policy that replaces nothing": {Policy{}, []Shard{of("a", 3, 2, pace(10*time.Minute))}, 20 * time.Minute, 2, true},
	} {
		steps, inTime := test.policy.Forecast(test.shards, start, start.Add(test.end))
		assert.Equal(t, test.steps, steps, name)
		assert.Equal(t, test.inTime, inTime, name)
	}
}
