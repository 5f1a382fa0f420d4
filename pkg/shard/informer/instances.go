// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"strings"

	"nstance.dev/operator/pkg/shard"
)

// InstanceHandler is told of changes. It gets ids and not values: what counts is
// what the cache says when the id is worked on. Its functions run in the reader's
// goroutines and must be quick. A nil function is not called.
type InstanceHandler struct {
	// OnInstance is called when a notice of an instance came, also when it says what
	// is known already: the server wants to be answered each time. And it is called
	// when the notice went away.
	OnInstance func(shard, id string)
	// OnShard is called when Settled of a shard changed.
	OnShard func(shard string)
}

func (h InstanceHandler) keyChanged(shard, id string) {
	if h.OnInstance != nil {
		h.OnInstance(shard, id)
	}
}

func (h InstanceHandler) shardChanged(shard string) {
	if h.OnShard != nil {
		h.OnShard(shard)
	}
}

// Instances is the cache of what shard servers tell of the ends of instances, of
// every shard that is being served. It knows nothing of the instances that stay.
// Its methods are safe for concurrent use.
//
// Notices stay while the watch of their shard is not open: no news is no news.
// One of a drain goes when the drain is withdrawn, that is when a watch opened
// later has told everything and not that. One that tells of an end goes about 10
// minutes after it came. All of a shard go when it leaves the configuration.
type Instances struct {
	shards[*notices, InstanceHandler]
	timing timing
	// sequence numbers the openings of watches and the announcements of drains, over
	// all shards, so that no number comes again when a shard or an instance does.
	// The lock of shards guards it.
	sequence int64
}

// NewInstances makes an empty cache. Serve fills it.
func NewInstances() *Instances {
	return &Instances{
		shards: shards[*notices, InstanceHandler]{newCache: newNotices, caches: map[string]*notices{}},
		timing: defaultTiming,
	}
}

// AddHandler adds a handler. Handlers are called in the order in which they were
// added. Add them before the first Serve: what is in the cache already is not
// told again.
func (i *Instances) AddHandler(handler InstanceHandler) {
	i.addHandler(handler)
}

// Get returns the last notice of an instance of a shard, and whether there is one.
func (i *Instances) Get(shardID, id string) (shard.Notice, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	n, ok := i.caches[shardID]
	if !ok {
		return shard.Notice{}, false
	}
	known, ok := n.byID[id]
	return known.Notice, ok
}

// List returns the last notice of each instance of a shard that there is one of,
// by id.
func (i *Instances) List(shardID string) []shard.Notice {
	i.mu.RLock()
	defer i.mu.RUnlock()
	n, ok := i.caches[shardID]
	if !ok {
		return nil
	}
	list := make([]shard.Notice, 0, len(n.byID))
	for _, known := range n.byID {
		list = append(list, known.Notice)
	}
	slices.SortFunc(list, func(a, b shard.Notice) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return list
}

// Settled reports whether the watch of a shard is open and its snapshot, all that
// drains at the opening, is over. Only then does an instance without a notice not
// drain. A server that offers no watch of instances never settles.
func (i *Instances) Settled(shardID string) bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	n, ok := i.caches[shardID]
	return ok && n.settled
}

// Session is a number that grows with each opening of a shard's watch that has
// settled; 0 before the first. The end of an instance is told once, to those who
// watch. So who has asked the server for an instance during one session asks
// again when Session is larger, and then only.
func (i *Instances) Session(shardID string) int64 {
	i.mu.RLock()
	defer i.mu.RUnlock()
	n, ok := i.caches[shardID]
	if !ok {
		return 0
	}
	return n.session
}

// next is the next number. The lock of shards must be held.
func (i *Instances) next() int64 {
	i.sequence++
	return i.sequence
}
