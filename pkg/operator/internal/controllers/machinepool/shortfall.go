// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/poolplan"
)

// defaultShortfallAfter is what an unset spec.shortfall.afterSeconds means.
const defaultShortfallAfter = 5 * time.Minute

// shortfallTimes records since when this process has seen the shortfalls of pools, and when
// it last moved instances because of them. A new leader begins again. The zero value is empty.
type shortfallTimes struct {
	mu    sync.Mutex
	pools map[cache.ObjectName]*poolShortfalls
}

type poolShortfalls struct {
	uid types.UID
	// since is by shard. A shard that is not connected is missing information, and begins
	// again.
	since map[string]time.Time
	// moved is the time of the last move, or when the pool was seen first: another process
	// may have moved instances before.
	moved time.Time
}

// observe adds to the shards of a pool whether their shortfalls are due, and returns
// whether instances may move, and when to look again, zero for never.
func (t *shortfallTimes) observe(pool *v1beta1.NstanceMachinePool, shards []shardState, now time.Time) (mayMove bool, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	state := t.pools[cache.MetaObjectToName(pool)]
	if state == nil || state.uid != pool.UID {
		state = &poolShortfalls{uid: pool.UID, since: map[string]time.Time{}, moved: now}
		if t.pools == nil {
			t.pools = map[cache.ObjectName]*poolShortfalls{}
		}
		t.pools[cache.MetaObjectToName(pool)] = state
	}
	after := shortfallAfter(pool)
	mayMove = now.Sub(state.moved) >= after
	short := false
	for i := range shards {
		shard := &shards[i]
		if shard.stock().Missing == 0 {
			delete(state.since, shard.id)
			continue
		}
		short = true
		since, found := state.since[shard.id]
		if !found {
			since = now
			state.since[shard.id] = now
		}
		shard.shortfallDue = now.Sub(since) >= after
		if !shard.shortfallDue {
			wait = shortest(wait, after-now.Sub(since))
		}
	}
	if short && !mayMove {
		wait = shortest(wait, after-now.Sub(state.moved))
	}
	return mayMove, wait
}

// moved records a move.
func (t *shortfallTimes) moved(pool cache.ObjectName, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if state := t.pools[pool]; state != nil {
		state.moved = now
	}
}

// remove removes a pool that was deleted.
func (t *shortfallTimes) remove(pool cache.ObjectName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pools, pool)
}

// shortest returns the shorter of two delays. Zero is no delay.
func shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func shortfallAfter(pool *v1beta1.NstanceMachinePool) time.Duration {
	if settings := pool.Spec.Shortfall; settings != nil && settings.AfterSeconds != 0 {
		return time.Duration(settings.AfterSeconds) * time.Second
	}
	return defaultShortfallAfter
}

// capacityAvailable returns the condition CapacityAvailable.
func capacityAvailable(pool *v1beta1.NstanceMachinePool, observed observation, d decision) metav1.Condition {
	var short []string
	var missing int32
	for i := range observed.shards {
		shard := &observed.shards[i]
		if n := shard.stock().Missing; n > 0 {
			missing += n
			short = append(short, fmt.Sprintf("%s lacks %d (%s)", shard.id, n, shard.reported.Shortfall.Message))
		}
	}
	lent := currentLoans(observed)
	if d.sizes != nil && !d.statusOnly {
		lent = describeLoans(observed, d.lent, *observed.machinePools[0].Spec.Replicas)
	}
	condition := metav1.Condition{Type: v1beta1.ConditionCapacityAvailable, Status: metav1.ConditionFalse}
	waiting := fmt.Sprintf("shards cannot create %d instances: %s", missing, strings.Join(short, ", "))
	switch {
	case lent != "" && missing > 0:
		condition.Reason, condition.Message = v1beta1.ReasonMoved, lent+"; "+waiting
	case lent != "":
		condition.Reason, condition.Message = v1beta1.ReasonMoved, lent
	case missing > 0 && poolplan.Moves(pool):
		condition.Reason = v1beta1.ReasonZoneOutOfStock
		condition.Message = fmt.Sprintf("%s; they move after %s to connected shards without a shortfall", waiting, shortfallAfter(pool))
	case missing > 0:
		condition.Reason, condition.Message = v1beta1.ReasonWaiting, waiting
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1beta1.ReasonNoShortfall
	}
	return condition
}

// currentLoans describes the loans of the shard groups.
func currentLoans(observed observation) string {
	lent, replicas := make([]int32, len(observed.shards)), int32(0)
	for i := range observed.shards {
		loan := poolplan.LoanOf(observed.pool, observed.shards[i].group)
		lent[i], replicas = loan.Lent, max(replicas, loan.Replicas)
	}
	return describeLoans(observed, lent, replicas)
}

// newLoan returns spec.loan of a shard that lends instances, nil if it lends and borrows none.
func newLoan(pool *v1beta1.NstanceMachinePool, lent, replicas int32) *v1beta1.Loan {
	if lent == 0 {
		return nil
	}
	return &v1beta1.Loan{Lent: lent, Division: *poolplan.Divided(pool, replicas)}
}

// describeLoans returns which shards have lent how many instances to which others, "" if
// no shard has.
func describeLoans(observed observation, lent []int32, replicas int32) string {
	var lenders, borrowers []string
	var total int32
	for i, n := range lent {
		switch {
		case n > 0:
			total += n
			lenders = append(lenders, fmt.Sprintf("%s (%d)", observed.shards[i].id, n))
		case n < 0:
			borrowers = append(borrowers, fmt.Sprintf("%s (%d)", observed.shards[i].id, -n))
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
