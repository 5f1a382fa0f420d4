// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// A shard that has nothing final to say is asked again after a delay that doubles
// between these.
const (
	firstAsk  = time.Second
	lastAsk   = 30 * time.Second
	lastEnd   = 10 * time.Second
	askFactor = 2
)

// unverified is before every session.
const unverified = -1

// memory is what is remembered of a machine from one sync to the next. All of it
// may be lost: then the shard is asked once more. There is one sync of a machine
// at a time, and nobody else uses it.
type memory struct {
	uid types.UID
	// id is that of the instance, from the moment in which the shard has told it: a
	// server without idempotency keys would make another one when asked again.
	id string
	// refused is the order that the shard has refused, nil when it has not.
	refused *refusal
	// asking and ending pace the calls while an instance is on its way in or out.
	asking, ending pace
	// awaited is since when the end of the instance waits for its pool, zero when it
	// does not.
	awaited time.Time
	// verified is the session of the shard's watch in which the instance was asked
	// for last. What happens to it after that is announced. It is unverified when
	// the instance is to be asked for in any case.
	verified int64
	// node is the Node that matches, and since when it does.
	node  types.UID
	since time.Time
	// ambiguous: more than one Node matches, and that was reported.
	ambiguous bool
}

// refusal is an order that a shard has refused. It is not sent again until the
// server's group changes, or until has come.
type refusal struct {
	etag    string
	until   time.Time
	message string
}

// holds tells whether the order would be refused for the same reason.
func (r *refusal) holds(etag string, now time.Time) bool {
	return r != nil && r.etag == etag && now.Before(r.until)
}

// pace tells when the shard is asked next. The zero value is now.
type pace struct {
	delay time.Duration
	next  time.Time
}

// asked puts the next call off, at most by longest.
func (p *pace) asked(now time.Time, longest time.Duration) {
	p.delay = min(max(askFactor*p.delay, firstAsk), longest)
	p.next = now.Add(p.delay)
}

// wait is how long it is until the next call, zero or less when it is due.
func (p *pace) wait(now time.Time) time.Duration { return p.next.Sub(now) }

// remember returns what is remembered of a machine. Of a former one of the same
// name it is nothing.
func (c *Controller) remember(key cache.ObjectName, uid types.UID) *memory {
	c.remembering.Lock()
	defer c.remembering.Unlock()
	if c.memories[key] == nil || c.memories[key].uid != uid {
		c.memories[key] = &memory{uid: uid}
	}
	return c.memories[key]
}

func (c *Controller) forget(key cache.ObjectName) {
	c.remembering.Lock()
	defer c.remembering.Unlock()
	delete(c.memories, key)
}
