// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
)

// entry is one instance.
type entry struct {
	// row is immutable: changes replace it as a whole.
	row *cache.Row
	// seen is set once the provider has listed the instance. found is set once the provider
	// has listed it as found. stopped is set once the provider has reported that nothing runs
	// on the instance any more, until it reports that the instance runs.
	seen, found, stopped *atomic.Bool
}

// isDeleted reports whether only a tombstone of the instance is left.
func (e entry) isDeleted() bool { return !e.row.DeletedAt.IsZero() }

// recordReport records that the provider lists the instance as vm.
func (e entry) recordReport(vm instance.VM) {
	e.seen.Store(true)
	if !vm.Expected {
		e.found.Store(true)
	}
	switch {
	case vm.State == instance.Terminating || vm.State.Down():
		e.stopped.Store(true)
	case vm.State == instance.Running:
		// Its provider has started it again.
		e.stopped.Store(false)
	}
}

// compare orders instances by age, the oldest first.
func (e entry) compare(other entry) int {
	a, b := &e.row.Record, &other.row.Record
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
}

// createRequest identifies a client's request to create an instance.
type createRequest struct{ tenant, idempotencyKey string }

func requestOf(row *cache.Row) createRequest {
	return createRequest{tenant: row.Record.Tenant, idempotencyKey: row.Record.IdempotencyKey}
}

// index finds instances by several keys. Its methods need Store.mu locked.
type index struct {
	byID map[string]entry
	// byGroup contains the instances that are not deleted, the oldest first.
	byGroup map[instance.GroupKey][]entry
	// byRequest maps requests with an idempotency key to instance ids.
	byRequest map[createRequest]string
	// onDemand is the usage of tenants.
	onDemand map[string]Usage
}

// Usage is what the on-demand instances of a tenant need.
type Usage struct {
	// Instances is the number of instances that are not deleted.
	Instances int
	// Bytes is the size of what clients have sent for all instances in memory, also for
	// deleted ones: their vars and idempotency keys.
	Bytes int
}

// Plus returns the sum of two usages.
func (u Usage) Plus(other Usage) Usage {
	return Usage{Instances: u.Instances + other.Instances, Bytes: u.Bytes + other.Bytes}
}

// Minus returns the difference of two usages.
func (u Usage) Minus(other Usage) Usage {
	return Usage{Instances: u.Instances - other.Instances, Bytes: u.Bytes - other.Bytes}
}

// UsageOf returns what an instance needs that is not deleted: nothing if it is managed.
func UsageOf(record *instance.Record) Usage {
	if !record.OnDemand {
		return Usage{}
	}
	bytes := len(record.IdempotencyKey)
	for name, value := range record.Vars {
		bytes += len(name) + len(value)
	}
	return Usage{Instances: 1, Bytes: bytes}
}

// usage returns what the instance of an entry needs, nothing for the zero value.
func (e entry) usage() Usage {
	if e.row == nil {
		return Usage{}
	}
	usage := UsageOf(&e.row.Record)
	if e.isDeleted() {
		usage.Instances = 0
	}
	return usage
}

func newIndex() *index {
	return &index{
		byID:      map[string]entry{},
		byGroup:   map[instance.GroupKey][]entry{},
		byRequest: map[createRequest]string{},
		onDemand:  map[string]Usage{},
	}
}

func (x *index) get(id string) (entry, bool) {
	e, found := x.byID[id]
	return e, found
}

// group returns a copy.
func (x *index) group(key instance.GroupKey) []entry {
	return slices.Clone(x.byGroup[key])
}

func (x *index) byIdempotencyKey(tenant, idempotencyKey string) (entry, bool) {
	return x.get(x.byRequest[createRequest{tenant: tenant, idempotencyKey: idempotencyKey}])
}

func (x *index) keys() []instance.GroupKey {
	return slices.Collect(maps.Keys(x.byGroup))
}

func (x *index) draining(tenant string) []entry {
	var entries []entry
	for key, group := range x.byGroup {
		if key.Tenant != tenant {
			continue
		}
		for _, e := range group {
			if e.row.Drain != nil && e.row.DeleteReason == "" {
				entries = append(entries, e)
			}
		}
	}
	return entries
}

// createdAfter iterates over all instances: it is called for each create request of a tenant with a
// limit per hour, which are few.
func (x *index) createdAfter(tenant string, after time.Time) int {
	created := 0
	for _, e := range x.byID {
		if record := &e.row.Record; record.OnDemand && record.Tenant == tenant && record.CreatedAt.After(after) {
			created++
		}
	}
	return created
}

// put adds an entry, or replaces the row of an existing one.
func (x *index) put(row *cache.Row) {
	id, key := row.Record.ID, row.Record.Key()
	e, found := x.byID[id]
	if !found {
		e.seen, e.found, e.stopped = new(atomic.Bool), new(atomic.Bool), new(atomic.Bool)
		if row.Record.IdempotencyKey != "" {
			x.byRequest[requestOf(row)] = id
		}
	}
	x.setUsage(row.Record.Tenant, e, entry{row: row})
	e.row = row
	x.byID[id] = e

	group := x.byGroup[key]
	at, listed := slices.BinarySearchFunc(group, e, entry.compare)
	switch {
	case listed && e.isDeleted():
		group = slices.Delete(group, at, at+1)
	case listed:
		group[at] = e
	case !e.isDeleted():
		group = slices.Insert(group, at, e)
	}
	if len(group) == 0 {
		delete(x.byGroup, key)
		return
	}
	x.byGroup[key] = group
}

// purge removes the instances that were deleted before a time.
func (x *index) purge(before time.Time) {
	for id, e := range x.byID {
		if !e.isDeleted() || !e.row.DeletedAt.Before(before) {
			continue
		}
		delete(x.byID, id)
		x.setUsage(e.row.Record.Tenant, e, entry{})
		if request := requestOf(e.row); x.byRequest[request] == id {
			delete(x.byRequest, request)
		}
	}
}

// setUsage replaces what an entry of a tenant needs. Either entry may be the zero value.
func (x *index) setUsage(tenant string, before, after entry) {
	usage := x.onDemand[tenant].Minus(before.usage()).Plus(after.usage())
	if usage == (Usage{}) {
		delete(x.onDemand, tenant)
		return
	}
	x.onDemand[tenant] = usage
}
