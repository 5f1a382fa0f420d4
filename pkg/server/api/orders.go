// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"cmp"
	"errors"
	"hash/maphash"
	"sync"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
)

// orders are the calls that ask for an instance by a name: an idempotency key, or
// else an id. Calls with neither ask for an instance each. The zero value is
// ready for use.
type orders struct {
	// locks are taken by the hash of a name: of several calls for the same, one
	// makes the instance and the others find it.
	locks [64]sync.Mutex

	mu sync.Mutex
	// failed are records of which it is not known whether they are stored. The
	// next call for the same tries exactly these again, so that no second
	// instance comes to light when the storage is read at the next start.
	failed map[orderName]instance.Record
}

// orderName is what tells an order from others.
type orderName struct{ tenant, name string }

var orderSeed = maphash.MakeSeed()

func nameOf(record instance.Record) orderName {
	return orderName{tenant: record.Tenant, name: cmp.Or(record.IdempotencyKey, record.ID)}
}

// lock waits for other calls for the same. The caller calls unlock.
func (o *orders) lock(name orderName) (unlock func()) {
	if name.name == "" {
		return func() {}
	}
	lock := &o.locks[maphash.Comparable(orderSeed, name)%uint64(len(o.locks))]
	lock.Lock()
	return lock.Unlock
}

// unsure returns the record of an earlier call for the same.
func (o *orders) unsure(name orderName) (instance.Record, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	record, found := o.failed[name]
	return record, found
}

// settle takes down what became of a record. Calls without a name do not come
// again.
func (o *orders) settle(name orderName, record instance.Record, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if name.name == "" || err == nil || errors.Is(err, instances.ErrExists) {
		delete(o.failed, name)
		return
	}
	if o.failed == nil {
		o.failed = map[orderName]instance.Record{}
	}
	o.failed[name] = record
}
