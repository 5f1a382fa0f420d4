// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"strings"

	"nstance.dev/operator/pkg/operator/shard"
)

// noticeHandler adapts a shard.NoticeHandler to shards.
type noticeHandler struct{ shard.NoticeHandler }

func (h noticeHandler) keyChanged(shard, id string) {
	if h.OnInstance != nil {
		h.OnInstance(shard, id)
	}
}

func (h noticeHandler) shardChanged(shard string) {
	if h.OnShard != nil {
		h.OnShard(shard)
	}
}

// Notices is the cache of the deletion notices of every shard that is being served. It
// does not contain instances that are not being deleted. Its methods are safe for
// concurrent use.
//
// Notices stay while the watch of their shard is not open. A notice of a drain is
// removed when the drain was withdrawn, that is when the snapshot of a later watch does
// not contain it. Any other notice expires about 10 minutes after it was received. All
// notices of a shard are removed when the shard is removed from the configuration.
type Notices struct {
	shards[*noticeCache, noticeHandler]
	timing timing
	// sequence numbers the openings of watches and the announcements of drains of all
	// shards, so that no number is used again when a shard or an instance is added
	// again. The lock of shards guards it.
	sequence int64
}

// NewNotices returns an empty cache. Serve fills it.
func NewNotices() *Notices {
	return &Notices{
		shards: shards[*noticeCache, noticeHandler]{newCache: newNoticeCache, caches: map[string]*noticeCache{}},
		timing: defaultTiming,
	}
}

// AddHandler registers handler. Handlers are called in the order in which they were
// added. Add them before the first Serve: handlers are not called for notices that are
// already in the cache.
func (n *Notices) AddHandler(handler shard.NoticeHandler) {
	n.addHandler(noticeHandler{handler})
}

// Get returns the last notice of an instance, and whether the cache has one.
func (n *Notices) Get(shardID, id string) (shard.DeletionNotice, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	if !ok {
		return shard.DeletionNotice{}, false
	}
	cached, ok := c.byID[id]
	return cached.DeletionNotice, ok
}

// List returns the last notice of each instance of a shard, by id.
func (n *Notices) List(shardID string) []shard.DeletionNotice {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	if !ok {
		return nil
	}
	list := make([]shard.DeletionNotice, 0, len(c.byID))
	for _, cached := range c.byID {
		list = append(list, cached.DeletionNotice)
	}
	slices.SortFunc(list, func(a, b shard.DeletionNotice) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return list
}

// Settled reports whether the watch of a shard is open and its snapshot, all drains at
// the time of the opening, is complete. Only then does a missing notice mean that an
// instance is not being drained. A server without WatchInstances never settles.
func (n *Notices) Settled(shardID string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	return ok && c.settled
}

// Session returns a number that grows each time the watch of a shard was opened and
// has settled; 0 before the first time. The server reports a deletion once, to the open
// watches. An instance that was queried during one session must therefore be queried
// again in the next, and not before.
func (n *Notices) Session(shardID string) int64 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	if !ok {
		return 0
	}
	return c.session
}

// next returns the next number. mu must be locked.
func (n *Notices) next() int64 {
	n.sequence++
	return n.sequence
}
