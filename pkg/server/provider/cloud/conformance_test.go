// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/tier"
)

func TestConformance(t *testing.T) {
	providertest.TestRemote(t, providertest.Config{
		Run: synctest.Test,
		NewBackend: func(*testing.T) providertest.Backend {
			c := cloudtest.NewCloud()
			c.Room["small"] = 2
			return cloudtest.NewBackend(c)
		},
		Type:           provider.InstanceType{Name: "medium", Arch: provider.ArchAMD64},
		OtherType:      provider.InstanceType{Name: "large", Arch: provider.ArchAMD64},
		Subnet:         "subnet",
		LimitedSubnet:  "small",
		RejectedSubnet: cloudtest.RejectedSubnet,
		QuietPeriod:    10 * time.Minute,
	})
}

// untagged is a cloud that finds machines by their provider ids only, as if their tags were
// lost.
type untagged struct {
	cloud.API
	lost *atomic.Bool
}

func (u untagged) List(ctx context.Context) ([]cloud.VM, error) {
	if u.lost.Load() {
		return nil, nil
	}
	return u.API.List(ctx)
}

func (u untagged) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	if u.lost.Load() {
		return cloud.VM{}, false, nil
	}
	return u.API.Find(ctx, id)
}

func (u untagged) FindKnown(ctx context.Context, known cloud.VM) (cloud.VM, bool, error) {
	return u.API.Find(ctx, known.ID)
}

// TestAMachineIsFoundByItsProviderID: it is not missing while neither lists nor its instance
// id show it, and missing when its provider id does not.
func TestAMachineIsFoundByItsProviderID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, lost := cloudtest.NewCloud(), new(atomic.Bool)
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(untagged{fake.API(shard), lost}, cloud.Options{CallContext: callContext})
		})
		id := h.MustRun(spec("one"))
		lost.Store(true)
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]instance.State{id: instance.Running}, h.States(workers))
		fake.Vanish(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
	})
}

// spotless is a cloud that has no capacity in the market "spot", which userdata names here.
type spotless struct{ cloud.API }

func (s spotless) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	if r.Market == "spot" {
		return cloud.VM{}, &cloud.Rejection{
			Scope: cloud.Scope{Type: r.Type.Name, Market: r.Market}, RetryAfter: time.Hour, Err: provider.OutOfCapacity("no %s", r.Market),
		}
	}
	return s.API.Launch(ctx, r)
}

// TestARejectionOfAMarket does not concern the others.
func TestARejectionOfAMarket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(spotless{cloudtest.NewCloud().API(shard)}, cloud.Options{
				CallContext: callContext, Market: func(s provider.Spec) string { return string(s.Userdata) },
			})
		})
		id := h.MustCreate(spec("spot"))
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		checker := h.Provider.(provider.CapacityChecker)
		require.ErrorContains(t, checker.CheckCapacity(spec("spot")), "out of capacity: no spot")
		require.NoError(t, checker.CheckCapacity(spec("on-demand")))
		again := spec("spot")
		again.ID = providertest.NewID(t)
		require.ErrorContains(t, h.Create(t.Context(), again), "was rejected before: out of capacity: no spot")
		h.MustRun(spec("on-demand"))
		// A launched VM of another market does not disprove the rejection.
		require.Error(t, checker.CheckCapacity(spec("spot")))
	})
}

// record is the part of an instance that a caller stores, and that survives a restart.
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
	// records has the records of all instances that are not deleted yet.
	records map[string]*record
	// removed has the instances whose deletion was confirmed, and vanished the instances that
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

// TestRandomWalk creates and deletes instances at random, while calls fail, responses are
// lost and the process restarts at any point, with a cloud whose reads are late. Each created
// instance must have had exactly one VM. No VM may be terminated without a request, and no
// unwanted VM may be left.
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
