// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

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
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/tier"
)

// record is what a caller stores of an instance, and a restart does not lose.
type record struct {
	created time.Time
	// providerID is set once the provider has reported it. If the provider does not know
	// the instance then, it is missing.
	providerID string
	deleted    bool
}

// walker is a caller that creates and deletes random instances.
type walker struct {
	*world
	t      *testing.T
	random *rand.Rand
	// records are those of all instances that are not deleted yet.
	records map[string]*record
	// removed are the instances whose deletion was confirmed, and vanished those that
	// another client has deleted.
	removed, vanished map[string]bool
	// deleted are all instances whose deletion was requested.
	deleted map[string]bool
	nonces  int
	// skew is how much the clock of the present process is ahead.
	skew time.Duration
}

// reconcile does for each instance what is due, as the reconciler does.
func (w *walker) reconcile() {
	for _, vm := range w.List(workers) {
		switch r, recorded := w.records[vm.ID]; {
		case !recorded && w.removed[vm.ID]:
			w.MustDelete(vm.ID) // it has returned
		case !recorded:
			w.t.Errorf("instance %s was never requested", vm.ID)
		case vm.ProviderID != "":
			r.providerID = vm.ProviderID
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		r := w.records[id]
		_, known := w.Get(id)
		switch {
		case r.deleted && known:
			w.MustDelete(id)
		case r.deleted:
			delete(w.records, id)
			w.removed[id] = true
		case known:
		case r.providerID != "":
			assert.True(w.t, w.vanished[id], "instance %s is missing", id)
			delete(w.records, id)
			w.removed[id] = true
		default:
			w.create(id, r)
		}
	}
}

// create requests an instance, each time with another nonce and maybe in another subnet.
func (w *walker) create(id string, r *record) {
	w.nonces++
	s := spec(fmt.Sprint("nonce ", w.nonces))
	s.ID, s.CreatedAt = id, r.created
	s.Subnet = []string{"subnet", "other", "third", cloudtest.RejectedSubnet}[w.random.IntN(4)]
	s.Type.Name = []string{"medium", "large"}[w.random.IntN(2)]
	if room, err := w.Capacity(w.t.Context(), s.Subnet); err == nil && room > 0 {
		_ = w.Create(w.t.Context(), s) // is tried again
	}
}

// expectRecorded gives the next process the instances that have a record.
func (w *walker) expectRecorded() {
	var vms []instance.VM
	for id, r := range w.records {
		vms = append(vms, instance.VM{ID: id, ProviderID: r.providerID, Group: workers})
	}
	w.Provider.(provider.Expecter).Expect(vms)
}

// step makes one random change or fault.
func (w *walker) step() {
	var running []string
	for _, vm := range w.List(workers) {
		if vm.State == instance.Running && !w.deleted[vm.ID] {
			running = append(running, vm.ID)
		}
	}
	slices.Sort(running)
	switch what := w.random.IntN(16); {
	case what < 4:
		w.records[providertest.NewID(w.t)] = &record{created: time.Now().Add(w.skew)}
	case what < 7 && len(w.records) > 0:
		id := slices.Sorted(maps.Keys(w.records))[w.random.IntN(len(w.records))]
		w.records[id].deleted, w.deleted[id] = true, true
	case what == 7 || what == 8:
		w.restart()
		w.skew = time.Duration(w.random.IntN(20)-10) * time.Minute
		w.expectRecorded()
	case what == 9:
		w.faults.Fail(cloudtest.Launch, w.random.IntN(3))
	case what == 10:
		w.faults.LoseResponses(cloudtest.Launch, 1+w.random.IntN(3))
	case what == 11:
		w.faults.LoseResponses(cloudtest.Terminate, 1)
		w.faults.Fail(cloudtest.Terminate, w.random.IntN(2))
	case what == 12:
		w.faults.EmptyLists(w.random.IntN(3))
		w.faults.Fail(cloudtest.List, w.random.IntN(3))
		w.faults.Fail(cloudtest.Find, w.random.IntN(3))
	case what == 13:
		w.faults.Throttle(time.Duration(w.random.IntN(90)) * time.Second)
	case what == 14:
		w.cloud.SetFull("large", w.random.IntN(2) == 0)
	case len(running) > 0:
		id := running[w.random.IntN(len(running))]
		w.cloud.Vanish(id)
		w.vanished[id] = true
	}
}

// TestRandomWalk creates and deletes instances at random while calls fail, responses are
// lost and the process restarts at any point, with a cloud whose reads are late.
// Each instance that was created has had exactly one machine. None was terminated without
// a request, and none is left that should not exist.
func TestRandomWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(20, 100)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			run(t, func(t *testing.T, world *world) {
				w := &walker{
					world: world, t: t, random: rand.New(rand.NewPCG(seed, 1)), records: map[string]*record{},
					removed: map[string]bool{}, vanished: map[string]bool{}, deleted: map[string]bool{},
				}
				w.cloud.Room["third"] = 3
				w.cloud.ForgetRejected = seed%2 == 0
				for range 250 {
					w.step()
					w.reconcile()
					// Most steps come at once, some after the reads show all machines.
					pauses := []time.Duration{0, time.Millisecond, 500 * time.Millisecond, 5 * time.Second, time.Minute, 5 * time.Minute}
					time.Sleep(pauses[w.random.IntN(len(pauses))])
				}
				w.settle()
				w.check()
			})
		})
	}
}

// settle ends the faults and reconciles until nothing changes any more.
func (w *walker) settle() {
	for _, operation := range []cloudtest.Operation{cloudtest.Launch, cloudtest.Terminate, cloudtest.List, cloudtest.Find} {
		w.faults.Fail(operation, 0)
		w.faults.LoseResponses(operation, 0)
	}
	w.faults.EmptyLists(0)
	w.faults.Throttle(0)
	w.cloud.SetFull("large", false)
	for range 400 {
		w.reconcile()
		time.Sleep(30 * time.Second)
	}
}

func (w *walker) check() {
	wanted := slices.Sorted(maps.Keys(w.records))
	for _, id := range wanted {
		vm, _ := w.Get(id)
		assert.Equal(w.t, instance.Running, vm.State, "instance %s", id)
	}
	assert.Equal(w.t, wanted, w.cloud.Existing(), "machines that exist, want those of the instances that are wanted")
	made := map[string]int{}
	for _, id := range w.cloud.Made() {
		if made[id]++; made[id] > 1 {
			w.t.Errorf("instance %s has had %d machines", id, made[id])
		}
	}
	for _, id := range w.cloud.Terminated() {
		assert.True(w.t, w.deleted[id] || w.vanished[id], "instance %s was terminated without a request", id)
	}
	assert.Greater(w.t, len(made), 20, "a walk that made few machines tests little")
}
