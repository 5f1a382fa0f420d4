// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

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
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// walker is a caller that creates and deletes random instances.
type walker struct {
	*world
	h       *providertest.Harness
	random  *rand.Rand
	records map[string]*record
	// ever are all instances, and deleted those whose deletion was requested.
	ever, deleted map[string]bool
	nonces        int
	// settling is true at the end, when all requests are for a subnet that has room.
	settling bool
}

// reconcile does for each instance what is due, as the reconciler does.
func (w *walker) reconcile() {
	for _, vm := range w.h.List(workers) {
		r, recorded := w.records[vm.ID]
		switch {
		case !recorded:
			assert.True(w.t, w.ever[vm.ID], "instance %s was never requested", vm.ID)
			w.h.MustDelete(vm.ID) // it was forgotten before it was launched
			continue
		case vm.State == instance.Failed || vm.State == instance.Stopped:
			r.Deleted, w.deleted[vm.ID] = true, true
		}
		if vm.ProviderID != "" {
			r.ProviderID = vm.ProviderID
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		r := w.records[id]
		_, known := w.h.Get(id)
		switch {
		case r.Deleted && known:
			w.h.MustDelete(id)
		case r.Deleted:
			delete(w.records, id)
		case known:
		case r.ProviderID != "":
			w.t.Errorf("instance %s is missing", id)
			delete(w.records, id)
		default:
			w.create(id, r)
		}
	}
}

// create requests an instance with another nonce each time.
func (w *walker) create(id string, r *record) {
	w.nonces++
	spec := newSpec(w.t)
	spec.ID, spec.CreatedAt, spec.Userdata = id, r.CreatedAt, fmt.Appendf(nil, "nonce %d", w.nonces)
	if !w.settling {
		spec.Subnet = []string{"subnet", "subnet", "two", "full", "missing"}[w.random.IntN(5)]
	}
	if room, err := w.h.Capacity(w.t.Context(), spec.Subnet); err == nil && room > 0 {
		_ = w.h.Create(w.t.Context(), spec) // is tried again
	}
}

// restart replaces the provider by that of another process.
func (w *walker) restart() {
	if w.h != nil {
		w.h.Stop()
	}
	w.h = w.startProvider()
	var expected []instance.VM
	for id, r := range w.records {
		expected = append(expected, instance.VM{ID: id, ProviderID: r.ProviderID, Group: workers})
	}
	w.h.Provider.(provider.Expecter).Expect(expected)
}

// fault makes some of the next calls fail.
func (w *walker) fault() *gcetest.Fault {
	methods := []string{"instances.insert", "instances.get", "instances.list", "instances.delete", "zoneOperations.get", "subnetworks.get", ""}
	statuses := []int{0, 0, 401, 404, 429, 500, 503}
	f := &gcetest.Fault{
		Method: methods[w.random.IntN(len(methods))], Times: 1 + w.random.IntN(4),
		Before: w.random.IntN(2) == 0, Status: statuses[w.random.IntN(len(statuses))],
	}
	// A response that the call was rejected is true only if it had no effect.
	f.Before = f.Before || f.Status == 401 || f.Status == 404 || f.Status == 429
	return f
}

// step makes one random change or fault.
func (w *walker) step() {
	switch what := w.random.IntN(12); {
	case what < 4:
		id := providertest.NewID(w.t)
		w.records[id], w.ever[id] = &record{CreatedAt: time.Now()}, true
	case what < 6 && len(w.records) > 0:
		id := slices.Sorted(maps.Keys(w.records))[w.random.IntN(len(w.records))]
		w.records[id].Deleted, w.deleted[id] = true, true
	case what == 6 || what == 7:
		w.restart()
	case what == 8:
		w.SetFaults(w.fault(), w.fault())
	case what == 9:
		w.SetExhausted("e2-small", standard, w.random.IntN(2) == 0)
	case what == 10:
		w.Reject("e2-small", []string{"", "INTERNAL_ERROR", "QUOTA_EXCEEDED"}[w.random.IntN(3)])
	default:
		w.SetOperationTime([]time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute}[w.random.IntN(4)])
	}
}

// TestRandomWalk creates and deletes instances at random while calls fail, responses are
// lost, capacity comes and goes and the process restarts at any point. Each instance has had
// at most one machine. None was deleted without a request, and none is left that should not
// exist.
func TestRandomWalk(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := gcetest.New()
			s.Lenient = seed%2 == 1
			s.VisibilityDelay = []time.Duration{0, 0, 30 * time.Second}[seed%3]
			inBubble(t, s, func(_ *testing.T, world *world) {
				w := &walker{
					world: world, random: rand.New(rand.NewPCG(seed, 2)),
					records: map[string]*record{}, ever: map[string]bool{}, deleted: map[string]bool{},
				}
				w.restart()
				for range 60 {
					w.step()
					w.reconcile()
					pauses := []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second, time.Minute, 3 * time.Minute}
					time.Sleep(pauses[w.random.IntN(len(pauses))])
				}
				w.SetFaults()
				w.SetExhausted("e2-small", standard, false)
				w.Reject("e2-small", "")
				w.SetOperationTime(time.Second)
				w.settling = true
				for range 40 {
					w.reconcile()
					time.Sleep(30 * time.Second)
				}
				w.check()
			})
		})
	}
}

func (w *walker) check() {
	wanted := slices.Sorted(maps.Keys(w.records))
	for _, id := range wanted {
		vm, _ := w.h.Get(id)
		assert.Equal(w.t, instance.Running, vm.State, "instance %s", id)
	}
	assert.Equal(w.t, wanted, w.All(), "machines")
	assert.Len(w.t, w.Disks(), len(wanted), "disks")
	made := map[string]int{}
	for _, name := range w.Made() {
		made[name]++
		assert.True(w.t, w.ever[name], "instance %s", name)
	}
	for id, count := range made {
		assert.Equal(w.t, 1, count, "machines of instance %s", id)
	}
	for _, id := range w.Deleted() {
		assert.True(w.t, w.deleted[id], "instance %s was deleted without a request", id)
	}
	assert.Greater(w.t, len(made), 2, "a walk that made few machines tests little")
}
