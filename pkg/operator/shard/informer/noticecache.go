// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"nstance.dev/operator/pkg/operator/shard"
)

// noticeCache is the cache of one shard. The lock of Notices guards it.
type noticeCache struct {
	byID map[string]cachedNotice

	// opening is the number of the current or last watch. session is the number of the last
	// watch that settled, 0 before that.
	opening, session int64
	// open reports whether the watch is open. settled reports whether its snapshot is also
	// complete.
	open, settled bool
	// openedAt is when the watch was opened. lastEventAt is when the last event was received,
	// initially openedAt.
	openedAt, lastEventAt time.Time
}

// cachedNotice is the last notice of an instance.
type cachedNotice struct {
	shard.DeletionNotice
	// opening is the number of the watch that received the notice.
	opening    int64
	receivedAt time.Time
}

func newNoticeCache() *noticeCache {
	return &noticeCache{byID: map[string]cachedNotice{}}
}

func (c *noticeCache) status() any { return c.settled }

// restart resets the state of the connection and keeps the notices.
func (c *noticeCache) restart() {
	c.open, c.settled = false, false
}

func (c *noticeCache) shardRemoved() []string { return slices.Sorted(maps.Keys(c.byID)) }

// watchOpened records the opening of a watch. number must be larger than all numbers before.
func (c *noticeCache) watchOpened(number int64, now time.Time) {
	c.opening, c.open, c.settled = number, true, false
	c.openedAt, c.lastEventAt = now, now
}

func (c *noticeCache) watchLost() {
	c.open, c.settled = false, false
}

// fits returns a *shard.LimitError if there would be too many notices.
func (c *noticeCache) fits(received shard.DeletionNotice) error {
	if _, ok := c.byID[received.InstanceID]; ok {
		return nil
	}
	return shard.Exceeds(shard.LimitNotices, "deletion notices", len(c.byID)+1, shard.MaxNotices)
}

// put stores a received notice, and returns the instance's id unless the notice is stale.
// number must be larger than all numbers before.
func (c *noticeCache) put(received shard.DeletionNotice, number int64, now time.Time) []string {
	c.lastEventAt = now
	cached := c.byID[received.InstanceID]
	if cached.opening == c.opening && isStale(received.State, cached.State) {
		return nil
	}
	// Servers may omit these fields in later events.
	received.ProviderID = cmp.Or(received.ProviderID, cached.ProviderID)
	received.Group = cmp.Or(received.Group, cached.Group)
	received.Reason = cmp.Or(received.Reason, cached.Reason)
	if len(received.Addresses) == 0 {
		received.Addresses = cached.Addresses
	}
	received.Announced = cached.Announced
	if received.State == shard.Draining {
		received.Announced = number
		received.Deadline = c.deadline(received, cached, now)
	}
	c.byID[received.InstanceID] = cachedNotice{DeletionNotice: received, opening: c.opening, receivedAt: now}
	return []string{received.InstanceID}
}

// deadline returns the deadline of a drain. It is computed again after each opening of the
// watch, because the server may have restarted the drain meanwhile.
func (c *noticeCache) deadline(received shard.DeletionNotice, cached cachedNotice, now time.Time) time.Time {
	switch {
	case received.Since.IsZero() || received.DeleteAt.IsZero():
		return time.Time{}
	case cached.opening == c.opening && cached.Since.Equal(received.Since) && cached.DeleteAt.Equal(received.DeleteAt):
		return cached.Deadline
	}
	return now.Add(received.DeleteAt.Sub(received.Since))
}

// isStale reports whether a received state is older than the cached state of the same watch:
// after Deleting an instance does not drain any more. A drain after Deleted is not stale: the
// instance was not deleted.
func isStale(received, cached shard.NoticeState) bool {
	switch cached {
	case shard.Deleting:
		return received == shard.Draining
	case shard.Deleted:
		return received == shard.Deleting
	}
	return false
}

// settlesAt returns when the snapshot of the open watch counts as complete if no further event
// is received.
func (c *noticeCache) settlesAt(timing timing) time.Time {
	quiet, latest := c.lastEventAt.Add(timing.settleQuiet), c.openedAt.Add(timing.settleTimeout)
	if latest.Before(quiet) {
		return latest
	}
	return quiet
}

// settle completes the snapshot, and drops the drains that are not in it, because the server
// has withdrawn them or deleted the instances. It returns their ids.
func (c *noticeCache) settle() []string {
	c.settled, c.session = true, c.opening
	return c.drop(func(cached cachedNotice) bool { return cached.State == shard.Draining && cached.opening != c.opening })
}

// expire drops the notices that were received at the given time or before, except drains, and
// returns the ids of their instances. Notices of instances that are being deleted expire too:
// the server reports the deletion once, and the event may be lost.
func (c *noticeCache) expire(receivedUntil time.Time) []string {
	return c.drop(func(cached cachedNotice) bool {
		return cached.State != shard.Draining && !cached.receivedAt.After(receivedUntil)
	})
}

func (c *noticeCache) drop(which func(cachedNotice) bool) []string {
	var ids []string
	for id, cached := range c.byID {
		if which(cached) {
			delete(c.byID, id)
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
