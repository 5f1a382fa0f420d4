// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"nstance.dev/operator/pkg/shard"
)

// notices is what is known of the ends of instances of one shard. The lock of
// Instances guards it.
type notices struct {
	byID map[string]notice

	// opening is the number of the watch that is open or was last, and session
	// that of the last one that settled; 0 when there was none.
	opening, session int64
	// open is whether the watch is open now, and settled whether its snapshot is
	// over as well.
	open, settled bool
	// openedAt and newsAt are when the watch was opened, and when it was opened or
	// an event came last.
	openedAt, newsAt time.Time
}

// notice is what came last of one instance.
type notice struct {
	shard.Notice
	// opening is the number of the watch by which it came, and came when that was.
	opening int64
	came    time.Time
}

func newNotices() *notices {
	return &notices{byID: map[string]notice{}}
}

func (n *notices) condition() any { return n.settled }

// restart keeps the notices.
func (n *notices) restart() {
	n.open, n.settled = false, false
}

func (n *notices) dropped() []string { return slices.Sorted(maps.Keys(n.byID)) }

// watchOpened begins the opening of a number, which must be larger than any
// before.
func (n *notices) watchOpened(number int64, now time.Time) {
	n.opening, n.open, n.settled = number, true, false
	n.openedAt, n.newsAt = now, now
}

func (n *notices) watchLost() {
	n.open, n.settled = false, false
}

// put stores what an event brought, and returns the instance's id unless the
// event is older than what is known. number must be larger than any before.
func (n *notices) put(news shard.Notice, number int64, now time.Time) []string {
	n.newsAt = now
	known := n.byID[news.InstanceID]
	if known.opening == n.opening && overtaken(news.State, known.State) {
		return nil
	}
	// Who an instance is does not change, and servers may leave it out.
	news.ProviderID = cmp.Or(news.ProviderID, known.ProviderID)
	news.Group = cmp.Or(news.Group, known.Group)
	news.Reason = cmp.Or(news.Reason, known.Reason)
	news.Announced = known.Announced
	if news.State == shard.Draining {
		news.Announced = number
	}
	n.byID[news.InstanceID] = notice{Notice: news, opening: n.opening, came: now}
	return []string{news.InstanceID}
}

// overtaken reports whether an event of state news, which came by the same watch
// as one of state known before, is the older of the two: what is being deleted
// does not drain any more. One that drains after it was deleted, however, was not
// deleted.
func overtaken(news, known shard.NoticeState) bool {
	switch known {
	case shard.Deleting:
		return news == shard.Draining
	case shard.Deleted:
		return news == shard.Deleting
	}
	return false
}

// settlesAt is when the snapshot of the watch that is open can be taken to be
// over, if no event comes before.
func (n *notices) settlesAt(timing timing) time.Time {
	quiet, last := n.newsAt.Add(timing.quiet), n.openedAt.Add(timing.settleLast)
	if last.Before(quiet) {
		return last
	}
	return quiet
}

// settle ends the snapshot, and drops the drains that were not in it: the server
// does not mean them any more, or the instance is gone. It returns their ids.
func (n *notices) settle() []string {
	n.settled, n.session = true, n.opening
	return n.drop(func(known notice) bool { return known.State == shard.Draining && known.opening != n.opening })
}

// forget drops the instances of which nothing came since a time and that do not
// drain, and returns their ids. That goes for those being deleted, too: the event
// that tells of the end comes once and may be missed.
func (n *notices) forget(since time.Time) []string {
	return n.drop(func(known notice) bool { return known.State != shard.Draining && !known.came.After(since) })
}

func (n *notices) drop(which func(notice) bool) []string {
	var ids []string
	for id, known := range n.byID {
		if which(known) {
			delete(n.byID, id)
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
