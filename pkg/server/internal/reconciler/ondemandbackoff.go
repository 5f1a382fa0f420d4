// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// minOnDemandDelay and maxOnDemandDelay bound the delay after an on-demand instance that could
// not be created, before another one like it is tried.
const (
	minOnDemandDelay = time.Second
	maxOnDemandDelay = 30 * time.Second
)

// onDemandBackoff contains what on-demand instances have in common that could not be created
// last. Without it each new request would try all those again that wait for capacity.
type onDemandBackoff struct {
	mu     sync.Mutex
	byKind map[onDemandKind]onDemandFailure
}

// onDemandKind is what decides whether an on-demand instance can be created.
type onDemandKind struct {
	group                                    instance.GroupKey
	template, instanceType, subnetPool, vars string
}

func kindOf(record *instance.Record) onDemandKind {
	return onDemandKind{record.Key(), record.Template, record.InstanceType, record.SubnetPool, fmt.Sprint(record.Vars)}
}

// onDemandFailure is the latest failure of a kind.
type onDemandFailure struct {
	at    time.Time
	delay time.Duration
}

// wait returns how long instances of a kind wait.
func (b *onDemandBackoff) wait(kind onDemandKind, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.byKind[kind]
	return last.at.Add(last.delay).Sub(now)
}

// done records the result of an attempt.
func (b *onDemandBackoff) done(kind onDemandKind, now time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.byKind, kind)
		return
	}
	for other, failure := range b.byKind {
		if now.Sub(failure.at) > 2*maxOnDemandDelay {
			delete(b.byKind, other)
		}
	}
	if b.byKind == nil {
		b.byKind = map[onDemandKind]onDemandFailure{}
	}
	b.byKind[kind] = onDemandFailure{at: now, delay: min(max(minOnDemandDelay, 2*b.byKind[kind].delay), maxOnDemandDelay)}
}

// createOnDemand calls do for an instance, unless one like it has failed a moment ago. The
// last attempt, after which the instance is given up, does not wait.
func (r *reconciliation) createOnDemand(i *instance.Instance, do func() error) error {
	kind, now := kindOf(&i.Record), time.Now()
	timeout := r.config.Shard.GarbageCollection.RegistrationTimeout
	last := timeout > 0 && !now.Before(i.CreatedAt.Add(timeout))
	if wait := r.onDemandBackoff.wait(kind, now); wait > 0 && !last {
		r.outcome.within(wait)
		return nil
	}
	// Each kind has its own type and pool, so a failure says nothing about the others.
	return r.rateLimited(func() error {
		err := do()
		r.onDemandBackoff.done(kind, time.Now(), err)
		return err
	})
}
