// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/shard"
)

func TestOlderEventUndoesNoNewerOne(t *testing.T) {
	const draining, deleting, deleted = shard.Draining, shard.Deleting, shard.Deleted
	// again stands for another opening of the watch.
	const again = shard.NoticeState("")
	for _, test := range []struct {
		name   string
		events []shard.NoticeState
		want   shard.NoticeState
		// stale is true when the last event is to be ignored.
		stale bool
	}{
		{"a drain", []shard.NoticeState{draining}, draining, false},
		{"a drain that is announced twice", []shard.NoticeState{draining, draining}, draining, false},
		{"an end", []shard.NoticeState{draining, deleting, deleted}, deleted, false},
		{"an end without a drain", []shard.NoticeState{deleted}, deleted, false},
		{"an end that is told twice", []shard.NoticeState{deleted, deleted}, deleted, false},
		{"a drain after the drain is over", []shard.NoticeState{deleting, draining}, deleting, true},
		{"deleting after deleted", []shard.NoticeState{deleted, deleting}, deleted, true},
		{"a drain of what was deleted", []shard.NoticeState{deleted, draining}, draining, false},
		{"a drain that another server begins anew", []shard.NoticeState{deleting, again, draining}, draining, false},
		{"an end that another server begins anew", []shard.NoticeState{deleted, again, deleting}, deleting, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNotices()
			now := time.Now()
			var number int64
			var changed []string
			n.watchOpened(1, now)
			for _, state := range test.events {
				number++
				if state == again {
					n.watchLost()
					n.watchOpened(number, now)
					continue
				}
				changed = n.put(shard.Notice{InstanceID: "i", State: state}, number, now)
			}
			if got := n.byID["i"].State; got != test.want {
				t.Errorf("it is %q, want %q", got, test.want)
			}
			if stale := changed == nil; stale != test.stale {
				t.Errorf("the last event was ignored: %t, want %t", stale, test.stale)
			}
		})
	}
}

func TestWhatAnEventLeavesOutIsKept(t *testing.T) {
	n := newNotices()
	now := time.Now()
	n.watchOpened(1, now)
	since, deleteAt := now.Add(-time.Minute), now.Add(time.Hour)
	n.put(shard.Notice{InstanceID: "i", ProviderID: "p", Group: "workers", State: shard.Draining, Reason: "expired", Since: since, DeleteAt: deleteAt}, 2, now)
	n.put(shard.Notice{InstanceID: "i", State: shard.Draining, Reason: "unhealthy", DeleteAt: deleteAt.Add(time.Hour)}, 3, now)
	want := shard.Notice{InstanceID: "i", ProviderID: "p", Group: "workers", State: shard.Draining, Reason: "unhealthy", DeleteAt: deleteAt.Add(time.Hour), Announced: 3}
	if got := n.byID["i"].Notice; got != want {
		t.Errorf("announced again:\ngot  %+v\nwant %+v", got, want)
	}
	n.put(shard.Notice{InstanceID: "i", State: shard.Deleted}, 4, now)
	want = shard.Notice{InstanceID: "i", ProviderID: "p", Group: "workers", State: shard.Deleted, Reason: "unhealthy", Announced: 3}
	if got := n.byID["i"].Notice; got != want {
		t.Errorf("deleted:\ngot  %+v\nwant %+v", got, want)
	}
}

func TestSettlingDropsOnlyWhatIsNotAnnounced(t *testing.T) {
	n := newNotices()
	now := time.Now()
	n.watchOpened(1, now)
	for id, state := range map[string]shard.NoticeState{
		"announced-again": shard.Draining, "withdrawn-1": shard.Draining, "withdrawn-2": shard.Draining,
		"deleting": shard.Deleting, "deleted": shard.Deleted,
	} {
		n.put(shard.Notice{InstanceID: id, State: state}, 2, now)
	}
	if got := n.settle(); got != nil {
		t.Errorf("the first snapshot drops %v", got)
	}
	n.watchLost()
	n.watchOpened(3, now)
	n.put(shard.Notice{InstanceID: "announced-again", State: shard.Draining}, 4, now)
	if got, want := n.settle(), []string{"withdrawn-1", "withdrawn-2"}; !slices.Equal(got, want) {
		t.Errorf("dropped %v, want %v", got, want)
	}
	if got, want := n.dropped(), []string{"announced-again", "deleted", "deleting"}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
}
