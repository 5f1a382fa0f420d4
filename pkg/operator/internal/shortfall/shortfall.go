// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shortfall follows the instances that the shards of a pool cannot create: since when, and whether
// they have moved to other shards.
package shortfall

import (
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/poolplan"
)

// defaultAfter is the default of spec.shortfall.afterSeconds.
const defaultAfter = 5 * time.Minute

// Shard is a shard of a pool.
type Shard struct {
	ID string
	// Missing is how many instances its server cannot create, 0 also while it is not connected.
	Missing int32
	// Message is why.
	Message string
}

// Times records since when this process has seen the shortfalls of pools, and when it last moved
// instances because of them. A new leader begins again. The zero value is empty.
type Times struct {
	mu    sync.Mutex
	pools map[cache.ObjectName]*times
}

type times struct {
	uid types.UID
	// since is by shard. A shard that is not connected is missing information, and begins
	// again.
	since map[string]time.Time
	// moved is the time of the last move, or when the pool was seen first: another process
	// may have moved instances before.
	moved time.Time
}

// Observe records the shortfalls of a pool. It returns the shards whose shortfall is due, whether
// instances may move, and when to look again, zero for never.
func (t *Times) Observe(pool *v1beta1.NstanceMachinePool, shards []Shard, now time.Time) (due sets.Set[string], mayMove bool, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.pools[cache.MetaObjectToName(pool)]
	if state == nil || state.uid != pool.UID {
		state = &times{uid: pool.UID, since: map[string]time.Time{}, moved: now}
		if t.pools == nil {
			t.pools = map[cache.ObjectName]*times{}
		}
		t.pools[cache.MetaObjectToName(pool)] = state
	}
	due = sets.New[string]()
	after := delayOf(pool)
	mayMove = now.Sub(state.moved) >= after
	short := false
	for _, shard := range shards {
		if shard.Missing == 0 {
			delete(state.since, shard.ID)
			continue
		}
		short = true
		since, found := state.since[shard.ID]
		if !found {
			since = now
			state.since[shard.ID] = now
		}
		if left := after - now.Sub(since); left <= 0 {
			due.Insert(shard.ID)
		} else if wait == 0 || left < wait {
			wait = left
		}
	}
	if left := after - now.Sub(state.moved); short && !mayMove && (wait == 0 || left < wait) {
		wait = left
	}
	return due, mayMove, wait
}

// Moved records a move.
func (t *Times) Moved(pool cache.ObjectName, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if state := t.pools[pool]; state != nil {
		state.moved = now
	}
}

// Remove removes a pool that was deleted.
func (t *Times) Remove(pool cache.ObjectName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pools, pool)
}

// delayOf returns how long a shard may have a shortfall before instances move.
func delayOf(pool *v1beta1.NstanceMachinePool) time.Duration {
	if settings := pool.Spec.Shortfall; settings != nil && settings.AfterSeconds != 0 {
		return time.Duration(settings.AfterSeconds) * time.Second
	}
	return defaultAfter
}

// Condition returns the condition CapacityAvailable. loans is a result of Loans.
func Condition(pool *v1beta1.NstanceMachinePool, shards []Shard, loans string) metav1.Condition {
	var short []string
	var missing int32
	for _, shard := range shards {
		if shard.Missing > 0 {
			missing += shard.Missing
			short = append(short, fmt.Sprintf("%s lacks %d (%s)", shard.ID, shard.Missing, shard.Message))
		}
	}
	condition := metav1.Condition{Type: v1beta1.ConditionCapacityAvailable, Status: metav1.ConditionFalse}
	waiting := fmt.Sprintf("shards cannot create %d instances: %s", missing, strings.Join(short, ", "))
	switch {
	case loans != "" && missing > 0:
		condition.Reason, condition.Message = v1beta1.ReasonMoved, loans+"; "+waiting
	case loans != "":
		condition.Reason, condition.Message = v1beta1.ReasonMoved, loans
	case missing > 0 && poolplan.Moves(pool):
		condition.Reason = v1beta1.ReasonZoneOutOfStock
		condition.Message = fmt.Sprintf("%s; they move after %s to connected shards without a shortfall", waiting, delayOf(pool))
	case missing > 0:
		condition.Reason, condition.Message = v1beta1.ReasonWaiting, waiting
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1beta1.ReasonNoShortfall
	}
	return condition
}

// Loans returns which shards have lent how many instances to which others, "" if
// no shard has.
func Loans(shards []Shard, lent []int32, replicas int32) string {
	var lenders, borrowers []string
	var total int32
	for i, n := range lent {
		switch {
		case n > 0:
			total += n
			lenders = append(lenders, fmt.Sprintf("%s (%d)", shards[i].ID, n))
		case n < 0:
			borrowers = append(borrowers, fmt.Sprintf("%s (%d)", shards[i].ID, -n))
		}
	}
	if total == 0 {
		return ""
	}
	from := "shards " + strings.Join(lenders, ", ")
	if len(lenders) == 1 {
		from = "shard " + strings.TrimSuffix(lenders[0], fmt.Sprintf(" (%d)", total))
	}
	to := "other shards"
	if len(borrowers) > 0 {
		to = "shards " + strings.Join(borrowers, ", ")
	}
	if len(borrowers) == 1 {
		to = "shard " + borrowers[0]
	}
	return fmt.Sprintf("%d of %d instances are lent by %s to %s", total, replicas, from, to)
}
