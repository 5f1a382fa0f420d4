// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"time"

	"nstance.dev/operator/pkg/operator/shard"
)

// link is the state of the watch of groups. It is kept when a shard is served again.
type link struct {
	lastList, lastMessage time.Time
	openings              int
}

func (l *link) opened(now time.Time) {
	l.openings++
	l.lastMessage = now
}

// Link returns the state of the watch of groups of a shard, the zero value if the shard is
// not being served.
func (g *Groups) Link(shardID string) shard.Link {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shardID]
	if !ok {
		return shard.Link{}
	}
	return shard.Link{
		LastList: c.link.lastList, LastMessage: c.link.lastMessage, Reconnects: max(c.link.openings-1, 0),
	}
}

// LastMessage returns when the watch of a shard was opened or has delivered its last event,
// the zero time before the first.
func (n *Notices) LastMessage(shardID string) time.Time {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	if !ok {
		return time.Time{}
	}
	return c.lastEventAt
}
