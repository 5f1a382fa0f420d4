// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func named(number int) []*nstancev1.GroupStatus {
	groups := make([]*nstancev1.GroupStatus, number)
	for n := range groups {
		groups[n] = &nstancev1.GroupStatus{Key: fmt.Sprintf("g%d", n)}
	}
	return groups
}

// running returns a group with instances.
func running(key string, instances int) *nstancev1.GroupStatus {
	group := &nstancev1.GroupStatus{Key: key, Size: int32(instances)}
	for n := range instances {
		group.ProviderIds = append(group.ProviderIds, fmt.Sprintf("kwok:///a/%d", n))
	}
	return group
}

// tooMuch are reports with more than the operator keeps of a shard, by the limit.
var tooMuch = map[shard.Limit][]*nstancev1.GroupStatus{
	shard.LimitGroups:    named(shard.MaxGroups + 1),
	shard.LimitInstances: {running("workers", shard.MaxInstances/2+1), running("others", shard.MaxInstances/2)},
	shard.LimitVars:      {{Key: "workers", Vars: map[string]string{"a": strings.Repeat("x", shard.MaxVar+1)}}},
	shard.LimitString:    {{Key: "workers", Etag: strings.Repeat("x", shard.MaxString+1)}},
}

func expectUnknown(t *testing.T, g *Groups, limit shard.Limit) {
	t.Helper()
	synctest.Wait()
	reachable, reason := g.Reachable("a")
	assert.False(t, reachable)
	assert.Equal(t, limit, shard.Exceeded(reason), "%v", reason)
	assert.True(t, shard.IsUnreachable(reason))
}

// A report beyond a limit is unknown, and never taken for a deletion.
func TestAListBeyondALimitDeletesNothing(t *testing.T) {
	for limit, groups := range tooMuch {
		t.Run(string(limit), func(t *testing.T) {
			p := &peer{groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 3}, {Key: "kept", Size: 2}}}
			withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
				expectSizes(t, g, "kept=2", "workers=3")
				handled()
				p.change(func() { p.groups = groups })
				<-time.After(33 * time.Second)
				expectUnknown(t, g, limit)
				expectSizes(t, g, "kept=2", "workers=3")
				assert.Equal(t, []string{"a"}, handled(), "the shard alone has changed")

				p.change(func() { p.groups = []*nstancev1.GroupStatus{{Key: "workers", Size: 4}} })
				<-time.After(33 * time.Second)
				expectSizes(t, g, "workers=4")
				reachable, reason := g.Reachable("a")
				assert.True(t, reachable, reason)
			})
		})
	}
}

// An operator that has just started knows no group of such a shard, and knows that it does not.
func TestAShardThatIsBeyondALimitFromTheStartHasNotSynced(t *testing.T) {
	for limit, groups := range tooMuch {
		t.Run(string(limit), func(t *testing.T) {
			withPeer(t, &peer{groups: groups}, func(t *testing.T, g *Groups, _ func() []string) {
				expectUnknown(t, g, limit)
				assert.False(t, g.HasSynced("a"))
				assert.Empty(t, g.List("a"))
			})
		})
	}
}

func TestAShardWithinTheLimitsIsCached(t *testing.T) {
	groups := named(shard.MaxGroups)
	groups[0] = running("g0", shard.MaxInstances)
	groups[1].Vars = map[string]string{"a": strings.Repeat("x", shard.MaxVar)}
	withPeer(t, &peer{groups: groups}, func(t *testing.T, g *Groups, _ func() []string) {
		synctest.Wait()
		reachable, reason := g.Reachable("a")
		assert.True(t, reachable, reason)
		assert.Len(t, g.List("a"), shard.MaxGroups)
	})
}

// An event beyond a limit closes the watch; the next list decides.
func TestAnEventBeyondALimitChangesNothing(t *testing.T) {
	for limit, test := range map[shard.Limit]struct{ groups, events []*nstancev1.GroupStatus }{
		shard.LimitGroups:    {named(shard.MaxGroups), []*nstancev1.GroupStatus{{Key: "g0", Size: 1}, {Key: "another"}}},
		shard.LimitInstances: {[]*nstancev1.GroupStatus{running("g0", shard.MaxInstances-1)}, []*nstancev1.GroupStatus{running("g1", 1), running("g2", 1)}},
		shard.LimitBytes: {nil, func() (events []*nstancev1.GroupStatus) {
			for n := range shard.MaxBytes / shard.MaxVar / 16 {
				vars := map[string]string{}
				for v := range 16 {
					vars[fmt.Sprint(v)] = strings.Repeat("x", shard.MaxVar)
				}
				events = append(events, &nstancev1.GroupStatus{Key: fmt.Sprintf("g%d", n), Vars: vars})
			}
			return events
		}()},
	} {
		t.Run(string(limit), func(t *testing.T) {
			p := &peer{groups: test.groups}
			withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
				for _, event := range test.events[:len(test.events)-1] {
					p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: event}
				}
				synctest.Wait()
				reachable, reason := g.Reachable("a")
				assert.True(t, reachable, reason)
				before := len(g.List("a"))
				handled()
				// The next list does not come before the state is read.
				block := make(chan struct{})
				p.change(func() { p.blockList = block })
				p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: test.events[len(test.events)-1]}
				expectUnknown(t, g, limit)
				assert.Len(t, g.List("a"), before)
				assert.Equal(t, []string{"a"}, handled(), "the shard alone has changed")
				close(block)
				<-time.After(time.Minute)
				reachable, reason = g.Reachable("a")
				assert.True(t, reachable, reason)
			})
		})
	}
}

// No object of Kubernetes can refer to a group with such a name.
func TestAGroupWithAnInvalidNameIsNotCached(t *testing.T) {
	p := &peer{groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1}, {Key: "Work_ers"}, {Key: strings.Repeat("x", 1<<20)}, {}}}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		expectSizes(t, g, "workers=1")
		reachable, reason := g.Reachable("a")
		assert.True(t, reachable, reason)
		p.events <- upsert("../other", 1)
		p.events <- upsert("workers", 2)
		expectSizes(t, g, "workers=2")
	})
}

// The sizes of groups that were changed and deleted are not counted for ever.
func TestTheSizeOfTheCacheIsTheSumOfItsGroups(t *testing.T) {
	c := newGroupCache("a", holders{})
	expect := func() {
		t.Helper()
		var sum shard.Size
		for _, group := range c.groups {
			size, err := shard.Measure(group)
			assert.NoError(t, err)
			sum = sum.Add(size)
		}
		assert.Equal(t, sum, c.size)
		assert.Len(t, c.sizes, len(c.groups))
	}
	withIDs := func(key string, number int) shard.Group {
		return shard.Group{Key: key, ProviderIDs: make([]string, number)}
	}
	for _, number := range []int{3, 1, 2} {
		_, err := c.put(withIDs("a", number))
		assert.NoError(t, err)
		_, err = c.put(withIDs(fmt.Sprint("b", number), number))
		assert.NoError(t, err)
		expect()
	}
	c.remove("b3")
	expect()
	c.startList(1)
	c.finishList([]shard.Group{withIDs("a", 7), withIDs("c", 1)})
	assert.Equal(t, 8, c.size.Instances)
	expect()
	c.restart()
	expect()
}

// A watch of instances with too many notices is closed, so it does not settle: no instance counts
// as one that is not drained.
func TestTooManyNoticesDoNotSettle(t *testing.T) {
	for name, events := range map[string][]*nstancev1.InstanceEvent{
		"one more than allowed": func() (events []*nstancev1.InstanceEvent) {
			for n := range shard.MaxNotices + 1 {
				events = append(events, drain(fmt.Sprint("i", n)))
			}
			return events
		}(),
		"a long id": {drain(strings.Repeat("x", shard.MaxString+1))},
	} {
		t.Run(name, func(t *testing.T) {
			p := &peer{drains: events}
			withWatcher(t, p, func(t *testing.T, w *watcher) {
				<-time.After(5 * time.Minute)
				synctest.Wait()
				assert.False(t, w.Settled("a"))
				assert.LessOrEqual(t, len(w.List("a")), shard.MaxNotices)
				p.change(func() { p.drains = events[:0] })
				<-time.After(time.Minute)
				assert.True(t, w.Settled("a"))
			})
		})
	}
}

func TestTextsAreCut(t *testing.T) {
	text := strings.Repeat("ä", shard.MaxText)
	p := &peer{groups: []*nstancev1.GroupStatus{{Key: "workers", Shortfall: &nstancev1.Shortfall{Missing: 1, Message: text}}}}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		synctest.Wait()
		group, _ := g.Get("a", "workers")
		assert.Equal(t, strings.Repeat("ä", shard.MaxText/2), group.Shortfall.Message)
		handled()
		p.errors <- &nstancev1.ErrorEvent{Group: "workers", Error: "x" + text}
		p.errors <- &nstancev1.ErrorEvent{Group: text, Error: "no group has this name"}
		got := handled()
		if assert.Len(t, got, 1) {
			assert.Less(t, len(got[0]), shard.MaxText+100)
			assert.NotContains(t, got[0], `\x`, "half a character")
		}
	})
}
