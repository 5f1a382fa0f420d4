// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/operator/shard"
)

func TestStaleEventsAreIgnored(t *testing.T) {
	const draining, deleting, deleted = shard.Draining, shard.Deleting, shard.Deleted
	// again stands for another opening of the watch.
	const again = shard.NoticeState("")
	for _, test := range []struct {
		name   string
		events []shard.NoticeState
		want   shard.NoticeState
		// stale is true if the last event must be ignored.
		stale bool
	}{
		{"a drain", []shard.NoticeState{draining}, draining, false},
		{"a drain that is announced twice", []shard.NoticeState{draining, draining}, draining, false},
		{"a deletion", []shard.NoticeState{draining, deleting, deleted}, deleted, false},
		{"a deletion without a drain", []shard.NoticeState{deleted}, deleted, false},
		{"a deletion that is reported twice", []shard.NoticeState{deleted, deleted}, deleted, false},
		{"a drain after deleting", []shard.NoticeState{deleting, draining}, deleting, true},
		{"deleting after deleted", []shard.NoticeState{deleted, deleting}, deleted, true},
		{"a drain after deleted", []shard.NoticeState{deleted, draining}, draining, false},
		{"a drain that another watch reports after deleting", []shard.NoticeState{deleting, again, draining}, draining, false},
		{"deleting that another watch reports after deleted", []shard.NoticeState{deleted, again, deleting}, deleting, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newNoticeCache()
			now := time.Now()
			var number int64
			var changed []string
			c.watchOpened(1, now)
			for _, state := range test.events {
				number++
				if state == again {
					c.watchLost()
					c.watchOpened(number, now)
					continue
				}
				changed = c.put(shard.DeletionNotice{InstanceID: "i", State: state}, number, now)
			}
			if got := c.byID["i"].State; got != test.want {
				t.Errorf("it is %q, want %q", got, test.want)
			}
			if stale := changed == nil; stale != test.stale {
				t.Errorf("the last event was ignored: %t, want %t", stale, test.stale)
			}
		})
	}
}

func TestMissingFieldsOfAnEventAreKept(t *testing.T) {
	c := newNoticeCache()
	now := time.Now()
	c.watchOpened(1, now)
	since, deleteAt := now.Add(-time.Minute), now.Add(time.Hour)
	c.put(shard.DeletionNotice{InstanceID: "i", ProviderID: "p", Addresses: []string{"10.0.0.7"}, Group: "workers", State: shard.Draining, Reason: "expired", Since: since, DeleteAt: deleteAt}, 2, now)
	c.put(shard.DeletionNotice{InstanceID: "i", State: shard.Draining, Reason: "unhealthy", DeleteAt: deleteAt.Add(time.Hour)}, 3, now)
	want := shard.DeletionNotice{InstanceID: "i", ProviderID: "p", Addresses: []string{"10.0.0.7"}, Group: "workers", State: shard.Draining, Reason: "unhealthy", DeleteAt: deleteAt.Add(time.Hour), Announced: 3}
	assert.Equal(t, want, c.byID["i"].DeletionNotice, "announced again")
	c.put(shard.DeletionNotice{InstanceID: "i", State: shard.Deleted}, 4, now)
	want = shard.DeletionNotice{InstanceID: "i", ProviderID: "p", Addresses: []string{"10.0.0.7"}, Group: "workers", State: shard.Deleted, Reason: "unhealthy", Announced: 3}
	assert.Equal(t, want, c.byID["i"].DeletionNotice, "deleted")
}

// The clocks of operator and server may differ by hours: only the length of the period is by
// the server's clock.
func TestDeadlineIsByTheOwnClock(t *testing.T) {
	const period = 5 * time.Minute
	now := time.Now()
	for name, since := range map[string]time.Time{
		"the same clock":   now,
		"the server late":  now.Add(-time.Hour),
		"the server early": now.Add(time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			c := newNoticeCache()
			c.watchOpened(1, now)
			notice := shard.DeletionNotice{InstanceID: "i", State: shard.Draining, Since: since, DeleteAt: since.Add(period)}
			expect := func(when string, want time.Time) {
				t.Helper()
				if got := c.byID["i"].Deadline; !got.Equal(want) {
					t.Errorf("%s: the deadline is %s, want %s", when, got, want)
				}
			}
			c.put(notice, 2, now)
			expect("announced", now.Add(period))
			c.put(notice, 3, now.Add(time.Minute))
			expect("announced again", now.Add(period))
			c.watchOpened(4, now.Add(2*time.Minute))
			c.put(notice, 5, now.Add(2*time.Minute))
			expect("announced by another watch", now.Add(2*time.Minute+period))
			again := notice
			again.Since, again.DeleteAt = since.Add(time.Minute), since.Add(time.Minute+2*period)
			c.put(again, 6, now.Add(3*time.Minute))
			expect("drained again", now.Add(3*time.Minute+2*period))
			again.Since = time.Time{}
			c.put(again, 7, now.Add(4*time.Minute))
			expect("without a start", time.Time{})
		})
	}
}

func TestSettlingDropsWithdrawnDrains(t *testing.T) {
	c := newNoticeCache()
	now := time.Now()
	c.watchOpened(1, now)
	for id, state := range map[string]shard.NoticeState{
		"announced-again": shard.Draining, "withdrawn-1": shard.Draining, "withdrawn-2": shard.Draining,
		"deleting": shard.Deleting, "deleted": shard.Deleted,
	} {
		c.put(shard.DeletionNotice{InstanceID: id, State: state}, 2, now)
	}
	if got := c.settle(); got != nil {
		t.Errorf("the first snapshot drops %v", got)
	}
	c.watchLost()
	c.watchOpened(3, now)
	c.put(shard.DeletionNotice{InstanceID: "announced-again", State: shard.Draining}, 4, now)
	if got, want := c.settle(), []string{"withdrawn-1", "withdrawn-2"}; !slices.Equal(got, want) {
		t.Errorf("dropped %v, want %v", got, want)
	}
	if got, want := c.shardRemoved(), []string{"announced-again", "deleted", "deleting"}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
}
