// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

const (
	// walkSteps is the number of random changes of a walk.
	walkSteps = 120
	// settleInterval is the time between two reconciliations at the end.
	settleInterval = 30 * time.Second
)

// Walk is a caller that creates and deletes instances at random while calls fail, responses
// are lost and the process restarts at any point. It runs in a bubble of synctest.
type Walk struct {
	Random *rand.Rand
	// Start starts the provider of a process.
	Start func() *providertest.Harness
	// Restarting is called before a restart, unless it is nil.
	Restarting func()
	// Spec returns a random request. If settling is true, the cloud has room for it.
	Spec func(settling bool) provider.Spec
	// Events are random changes and faults of the cloud, with equal probability.
	Events []func()
	// Settle ends all faults. SettleSteps is how often the caller reconciles afterwards.
	Settle      func()
	SettleSteps int
	// Made returns the instance ids of all VMs that were ever created, and Ran the ids of the
	// VMs that could run.
	Made, Ran func() []string
	// Deleted returns the ids of instances that have lost a VM.
	Deleted func() []string
	// Check asserts that exactly the VMs of these instances exist, with no other resources.
	Check func(wanted []string)
	// Least is the minimum number of instances that must have had a VM.
	Least int
}

// walker is a walk in progress.
type walker struct {
	*Walk
	*providertest.Harness
	t       *testing.T
	records map[string]record
	// ever has all instances, and deleted the instances whose deletion was requested.
	ever, deleted map[string]bool
	nonces        int
	settling      bool
}

// Test walks. In the end each instance must have had at most one VM. No VM may be deleted
// without a request, and no unwanted VM may be left.
func (walk *Walk) Test(t *testing.T) {
	w := &walker{Walk: walk, t: t, records: map[string]record{}, ever: map[string]bool{}, deleted: map[string]bool{}}
	w.restart()
	pauses := []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second, time.Minute, 3 * time.Minute}
	for range walkSteps {
		w.change()
		w.reconcile()
		time.Sleep(pauses[w.Random.IntN(len(pauses))])
	}
	w.Settle()
	w.settling = true
	for range w.SettleSteps {
		w.reconcile()
		time.Sleep(settleInterval)
	}
	w.check()
}

// restart replaces the provider by the provider of another process.
func (w *walker) restart() {
	if w.Harness != nil {
		w.Stop()
	}
	w.Harness = w.Start()
	expect(w.Provider, w.records)
}

// change makes one random change or fault.
func (w *walker) change() {
	switch what := w.Random.IntN(8 + len(w.Events)); {
	case what < 4:
		id := providertest.NewID(w.t)
		w.records[id], w.ever[id] = record{CreatedAt: time.Now()}, true
	case what < 6 && len(w.records) > 0:
		w.delete(slices.Sorted(maps.Keys(w.records))[w.Random.IntN(len(w.records))])
	case what == 6 || what == 7:
		if w.Restarting != nil {
			w.Restarting()
		}
		w.restart()
	default:
		w.Events[what%len(w.Events)]()
	}
}

// delete records that an instance is to be deleted.
func (w *walker) delete(id string) {
	stored := w.records[id]
	stored.Deleted = true
	w.records[id], w.deleted[id] = stored, true
}

// reconcile makes the next step for each instance, like the reconciler of a server.
func (w *walker) reconcile() {
	w.Discard() // the walk reads the states, and a provider waits until its reports are read
	for _, vm := range w.List(workers) {
		stored, recorded := w.records[vm.ID]
		if !recorded {
			assert.True(w.t, w.ever[vm.ID], "instance %s was never requested", vm.ID)
			w.MustDelete(vm.ID) // it was forgotten before it was launched
			continue
		}
		if vm.ProviderID != "" {
			stored.ProviderID = vm.ProviderID
			w.records[vm.ID] = stored
		}
		if vm.State == instance.Failed || vm.State == instance.Stopped {
			w.delete(vm.ID)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		stored := w.records[id]
		_, known := w.Get(id)
		switch {
		case stored.Deleted && known:
			w.MustDelete(id)
		case stored.Deleted:
			delete(w.records, id)
		case known:
		case stored.ProviderID != "":
			w.t.Errorf("instance %s is missing", id)
			delete(w.records, id)
		default:
			w.create(id, stored)
		}
	}
}

// create requests an instance with another nonce each time.
func (w *walker) create(id string, stored record) {
	w.nonces++
	spec := w.Spec(w.settling)
	spec.ID, spec.Group, spec.CreatedAt, spec.Userdata = id, workers, stored.CreatedAt, fmt.Appendf(nil, "nonce %d", w.nonces)
	if room, err := w.Capacity(w.t.Context(), spec.Subnet); err == nil && room > 0 {
		_ = w.Create(w.t.Context(), spec) // is tried again
	}
}

func (w *walker) check() {
	wanted := slices.Sorted(maps.Keys(w.records))
	for _, id := range wanted {
		vm, _ := w.Get(id)
		assert.Equal(w.t, instance.Running, vm.State, "instance %s", id)
	}
	w.Check(wanted)
	made, ran := map[string]bool{}, map[string]int{}
	for _, id := range w.Made() {
		made[id] = true
		assert.True(w.t, w.ever[id], "instance %s was never requested, and has had a machine", id)
	}
	for _, id := range w.Ran() {
		ran[id]++
	}
	for id, count := range ran {
		assert.Equal(w.t, 1, count, "machines of instance %s", id)
	}
	for _, id := range w.Deleted() {
		assert.True(w.t, w.deleted[id], "instance %s was deleted without a request", id)
	}
	w.t.Logf("%d instances, %d of them have had a machine", len(w.ever), len(made))
	assert.Greater(w.t, len(made), w.Least, "a walk that made few machines tests little")
}
