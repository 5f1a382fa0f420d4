// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A shard that accepts calls and never replies to them is unreachable after the probe
// interval and the timeout of a list, and reachable again within the interval of retries.
func TestProbeIntervalLimitsHowLongASilentShardSeemsReachable(t *testing.T) {
	for name, test := range map[string]struct {
		interval         time.Duration
		earliest, latest time.Duration
		recovery         time.Duration
	}{
		"by default": {interval: 0, earliest: 37 * time.Second, latest: 43 * time.Second, recovery: 25 * time.Second},
		"longest":    {interval: MaxProbeInterval, earliest: 37 * time.Second, latest: 43 * time.Second, recovery: 25 * time.Second},
		"3 s":        {interval: 3 * time.Second, earliest: 5700 * time.Millisecond, latest: 6300 * time.Millisecond, recovery: 7 * time.Second},
		"shortest":   {interval: MinProbeInterval, earliest: 1900 * time.Millisecond, latest: 2100 * time.Millisecond, recovery: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := &peer{}
			withPeerAndOptions(t, p, Options{ProbeInterval: test.interval}, func(t *testing.T, g *Groups, _ func() []string) {
				// The first list was answered at the time when the test begins.
				silent := make(chan struct{})
				p.change(func() { p.blockList = silent })
				begin := time.Now()
				<-time.After(test.earliest - time.Millisecond)
				synctest.Wait()
				ok, err := g.Reachable("a")
				assert.True(t, ok, "reachable before %s: %v", test.earliest, err)
				for ok && time.Since(begin) < time.Minute {
					<-time.After(time.Millisecond)
					synctest.Wait()
					ok, _ = g.Reachable("a")
				}
				assert.LessOrEqual(t, time.Since(begin), test.latest, "how long the silent shard seemed reachable")

				<-time.After(10 * time.Minute)
				p.change(func() { p.blockList = nil })
				close(silent)
				<-time.After(test.recovery)
				synctest.Wait()
				ok, err = g.Reachable("a")
				assert.True(t, ok, "reachable %s after the recovery: %v", test.recovery, err)
			})
		})
	}
}

func TestGroupsAreListedAtTheProbeInterval(t *testing.T) {
	p := &peer{}
	withPeerAndOptions(t, p, Options{ProbeInterval: 3 * time.Second}, func(t *testing.T, _ *Groups, handled func() []string) {
		handled()
		<-time.After(time.Hour)
		assert.Empty(t, handled())
		p.change(func() { assert.InDelta(t, time.Hour/(3*time.Second), p.lists, 100) })
	})
}
