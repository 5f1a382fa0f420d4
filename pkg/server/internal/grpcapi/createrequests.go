// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"cmp"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
)

// createRequests serialises the requests to create the same instance. An
// idempotency key, or else an id, identifies the instance. A request with neither is
// for an instance of its own. The zero value is ready for use.
type createRequests struct {
	// locks are striped by the hash of the key: of several requests for the same
	// instance, one creates it and the others find it.
	locks [64]sync.Mutex

	mu sync.Mutex
	// unconfirmed are records that may or may not be stored. The next request for
	// the same instance stores exactly this record again, so that no second
	// instance appears when the storage is read at the next start.
	unconfirmed map[requestKey]instance.Record
	// reserved is, by tenant, what the requests need that have passed the limits of the tenant
	// and whose records are not stored yet.
	reserved map[string]instancestore.Usage
}

const (
	// maxUnconfirmed is the maximum number of unconfirmed records, and unconfirmedAge how
	// long the other records are kept when there are more: clients have given up by then.
	maxUnconfirmed = 1024
	unconfirmedAge = time.Hour
)

// requestKey identifies the instance of a request.
type requestKey struct{ tenant, name string }

var requestKeySeed = maphash.MakeSeed()

func requestKeyOf(record instance.Record) requestKey {
	return requestKey{tenant: record.Tenant, name: cmp.Or(record.IdempotencyKey, record.ID)}
}

// lock waits for other requests for the same instance. The caller calls unlock.
func (r *createRequests) lock(key requestKey) (unlock func()) {
	if key.name == "" {
		return func() {}
	}
	lock := &r.locks[maphash.Comparable(requestKeySeed, key)%uint64(len(r.locks))]
	lock.Lock()
	return lock.Unlock
}

// unconfirmedRecord returns the record of an earlier request for the same
// instance if it is not known whether it was stored.
func (r *createRequests) unconfirmedRecord(key requestKey) (instance.Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	record, found := r.unconfirmed[key]
	return record, found
}

// done records the result of storing a record. Requests without a key are not
// recorded: they cannot be repeated.
func (r *createRequests) done(key requestKey, record instance.Record, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key.name == "" || err == nil || errors.Is(err, instancestore.ErrExists) {
		delete(r.unconfirmed, key)
		return
	}
	if r.unconfirmed == nil {
		r.unconfirmed = map[requestKey]instance.Record{}
	}
	r.unconfirmed[key] = record
	if len(r.unconfirmed) > maxUnconfirmed {
		r.forget(time.Now())
	}
}

// forget removes the unconfirmed records that are too old, or else the oldest record. mu must
// be locked.
func (r *createRequests) forget(now time.Time) {
	var oldest requestKey
	for key, record := range r.unconfirmed {
		if now.Sub(record.CreatedAt) > unconfirmedAge {
			delete(r.unconfirmed, key)
		} else if first, found := r.unconfirmed[oldest]; !found || record.CreatedAt.Before(first.CreatedAt) {
			oldest = key
		}
	}
	if len(r.unconfirmed) > maxUnconfirmed {
		delete(r.unconfirmed, oldest)
	}
}

// Limits of the on-demand instances of a tenant, so that no tenant can fill the memory of the
// shard that others use too. The number of instances is config.Config.MaxOnDemand
// (docs/server-reference.md#limits).
const (
	// maxIdempotencyKey is the maximum length of an idempotency key in bytes. The operator sends
	// a UID.
	maxIdempotencyKey = 128
	// maxOnDemandBytes is the maximum size of the vars and idempotency keys of all on-demand
	// instances that the server knows, also of deleted ones.
	maxOnDemandBytes = 16 << 20
)

// checkHour declines a new on-demand instance of a tenant that has created as many in the last hour
// as it may. concurrent is the number of instances whose records are not stored yet.
func (s *OperatorService) checkHour(record *instance.Record, concurrent int) error {
	limit, limited := s.Store.Config().MaxOnDemandPerHour()
	if !limited {
		return nil
	}
	created := s.Instances.CreatedAfter(record.Tenant, record.CreatedAt.Add(-config.OnDemandPeriod)) + concurrent
	if created >= limit {
		return outOfCapacity("instance of group %s: the tenant has created %d on-demand instances on this shard in the last hour, at most %d are allowed (shard.max_on_demand_per_hour)",
			record.Group, created, limit)
	}
	return nil
}

// reserve declines a new on-demand instance of a tenant that has reached a limit. Otherwise the
// instance counts until the caller calls release, which it does when the record is stored:
// concurrent requests must not exceed a limit together.
func (s *OperatorService) reserve(record *instance.Record) (release func(), err error) {
	r, needed := &s.createRequests, instancestore.UsageOf(record)
	r.mu.Lock()
	defer r.mu.Unlock()
	used := s.Instances.OnDemand(record.Tenant).Plus(r.reserved[record.Tenant])
	if limit := s.Store.Config().MaxOnDemand(); used.Instances >= limit {
		return nil, outOfCapacity("instance of group %s: the tenant has %d on-demand instances on this shard, at most %d are allowed (shard.max_on_demand)",
			record.Group, used.Instances, limit)
	}
	if err := s.checkHour(record, r.reserved[record.Tenant].Instances); err != nil {
		return nil, err
	}
	if total := used.Plus(needed).Bytes; total > maxOnDemandBytes {
		return nil, outOfCapacity("instance of group %s: vars and idempotency keys of the tenant's on-demand instances would have %d bytes on this shard, at most %d are allowed",
			record.Group, total, maxOnDemandBytes)
	}
	if r.reserved == nil {
		r.reserved = map[string]instancestore.Usage{}
	}
	r.reserved[record.Tenant] = r.reserved[record.Tenant].Plus(needed)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if left := r.reserved[record.Tenant].Minus(needed); left == (instancestore.Usage{}) {
			delete(r.reserved, record.Tenant)
		} else {
			r.reserved[record.Tenant] = left
		}
	}, nil
}
