// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instances

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/instance"
)

// entry is one instance.
type entry struct {
	// row is replaced as a whole: who has it can keep it.
	row *cache.Row
	// seen is set once the provider has shown the instance.
	seen *atomic.Bool
}

// gone tells whether only the memory of the instance is left.
func (e entry) gone() bool { return !e.row.DeletedAt.IsZero() }

// compare orders instances by age, the oldest first.
func (e entry) compare(other entry) int {
	a, b := &e.row.Record, &other.row.Record
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
}

// order is what names an order of a caller.
type order struct{ tenant, idempotencyKey string }

func orderOf(row *cache.Row) order {
	return order{tenant: row.Record.Tenant, idempotencyKey: row.Record.IdempotencyKey}
}

// index finds instances. Who uses it holds a lock.
type index struct {
	byID map[string]entry
	// byGroup has the instances that are not gone, the oldest first.
	byGroup map[instance.GroupKey][]entry
	// byOrder has the ids of those with an idempotency key.
	byOrder map[order]string
}

func newIndex() *index {
	return &index{
		byID:    map[string]entry{},
		byGroup: map[instance.GroupKey][]entry{},
		byOrder: map[order]string{},
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

func (x *index) ordered(tenant, idempotencyKey string) (entry, bool) {
	return x.get(x.byOrder[order{tenant, idempotencyKey}])
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

// put makes an entry, or gives the one that is there another row.
func (x *index) put(row *cache.Row) {
	id, key := row.Record.ID, row.Record.Key()
	e, found := x.byID[id]
	if !found {
		e.seen = new(atomic.Bool)
		if row.Record.IdempotencyKey != "" {
			x.byOrder[orderOf(row)] = id
		}
	}
	e.row = row
	x.byID[id] = e

	group := x.byGroup[key]
	at, listed := slices.BinarySearchFunc(group, e, entry.compare)
	switch {
	case listed && e.gone():
		group = slices.Delete(group, at, at+1)
	case listed:
		group[at] = e
	case !e.gone():
		group = slices.Insert(group, at, e)
	}
	if len(group) == 0 {
		delete(x.byGroup, key)
		return
	}
	x.byGroup[key] = group
}

// purge removes those that were gone before a time.
func (x *index) purge(before time.Time) {
	for id, e := range x.byID {
		if !e.gone() || !e.row.DeletedAt.Before(before) {
			continue
		}
		delete(x.byID, id)
		if order := orderOf(e.row); x.byOrder[order] == id {
			delete(x.byOrder, order)
		}
	}
}
