// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// lowering is a number of replicas, and the time since which the replicas of a pool have
// been at or below it.
type lowering struct {
	replicas int32
	since    time.Time
}

// lowerings are those of one pool, from the largest number to the smallest.
type lowerings []lowering

// observe adds the present replicas. Lowerings below them are removed: the replicas were
// raised.
func (l lowerings) observe(replicas int32, now time.Time) lowerings {
	at := 0
	for at < len(l) && l[at].replicas > replicas {
		at++
	}
	since := now
	if at < len(l) {
		since = l[at].since
	}
	return append(l[:at:at], lowering{replicas, since})
}

// stable returns the number at or below which the replicas have been for period,
// math.MaxInt32 if there is none, and when there is a smaller one, the zero time if there
// will be none.
func (l lowerings) stable(period time.Duration, now time.Time) (replicas int32, next time.Time) {
	replicas = math.MaxInt32
	for _, lowering := range l {
		if now.Sub(lowering.since) < period {
			return replicas, lowering.since.Add(period)
		}
		replicas = lowering.replicas
	}
	return replicas, time.Time{}
}

// scaleDowns are the guarded scale-downs that this leader has seen. Another leader starts
// without them. The zero value is empty.
type scaleDowns struct {
	mu     sync.Mutex
	byPool map[cache.ObjectName]poolLowerings
}

type poolLowerings struct {
	uid types.UID
	lowerings
}

// observe records the replicas of a pool that has more instances, and returns its
// lowerings.
func (s *scaleDowns) observe(pool cache.ObjectName, uid types.UID, replicas int32, now time.Time) lowerings {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPool == nil {
		s.byPool = make(map[cache.ObjectName]poolLowerings)
	}
	before := s.byPool[pool]
	if before.uid != uid {
		before = poolLowerings{uid: uid}
	}
	before.lowerings = before.observe(replicas, now)
	s.byPool[pool] = before
	return before.lowerings
}

// drop removes the scale-down of a pool, which is complete or no longer guarded.
func (s *scaleDowns) drop(pool cache.ObjectName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPool, pool)
}
