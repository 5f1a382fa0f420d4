// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestANewMachineIsHidden for 30 s: there is no second one, and it is not missing.
func TestANewMachineIsHidden(t *testing.T) {
	s := gcetest.New()
	s.VisibilityDelay = 30 * time.Second
	inBubble(t, s, func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustCreate(newSpec(t))
		time.Sleep(20 * time.Second)
		assert.Equal(t, map[string]instance.State{id: instance.Pending}, h.States(workers))
		h.Await(workers, map[string]instance.State{id: instance.Running})
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{id}, w.Made())
		assert.Empty(t, h.Failures, "failures")
	})
}

// TestANewMachineIsHiddenFromTheNextProcess, which has another nonce for the instance.
func TestANewMachineIsHiddenFromTheNextProcess(t *testing.T) {
	s := gcetest.New()
	s.VisibilityDelay = 30 * time.Second
	inBubble(t, s, func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustCreate(newSpec(t))
		time.Sleep(10 * time.Second)
		h.Stop()
		h = w.startProvider()
		h.Provider.(provider.Expecter).Expect([]instance.VM{{ID: id, Group: workers}})
		spec := newSpec(t)
		spec.ID = id
		h.MustRun(spec)
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{id}, w.Made())
		assert.Equal(t, []string{id}, w.All())
	})
}

// TestNoCapacity: the lack is reported, and not requested again until some minutes are over,
// and then once. Other types, and the other market, are not affected.
func TestNoCapacity(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		h := w.startProvider()
		w.SetExhausted("e2-small", spot, true)
		cheap := newSpec(t)
		cheap.Args, cheap.Group = map[string]any{argProvisioning: spot}, instance.GroupKey{Tenant: "default", Group: "cheap"}
		id := h.MustCreate(cheap)
		h.Await(cheap.Group, map[string]instance.State{id: providertest.Deleted})
		errs := h.ExpectFailures(1, cheap.Group, id)
		require.ErrorContains(t, errs[0], "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
		_, ok := provider.AsCapacityError(errs[0])
		assert.True(t, ok)
		require.Error(t, h.Provider.(provider.CapacityChecker).CheckCapacity(cheap))

		requests := func() int { return w.Calls()["compute.instances.insert"] }
		requests()
		rejected := 0
		create := func() {
			cheap.ID = id
			if err := h.Create(t.Context(), cheap); err != nil {
				rejected++
			}
		}
		for range 170 {
			create()
			time.Sleep(time.Second)
		}
		assert.Zero(t, requests(), "requests while the lack is remembered")
		assert.Equal(t, 170, rejected)
		h.MustRun(newSpec(t)) // the same type, not spot
		large := newSpec(t)
		large.Type, large.Args = largeType, cheap.Args
		h.MustRun(large)
		assert.Equal(t, 2, requests())
		for range 60 {
			create()
			time.Sleep(time.Second)
		}
		assert.Equal(t, 1, requests(), "attempts after that time")
		w.SetExhausted("e2-small", spot, false)
		for {
			create()
			if h.States(cheap.Group)[id] == instance.Running {
				break
			}
			time.Sleep(time.Second)
		}
		assert.Len(t, w.Made(), 3)
	})
}

// TestAddresses: a subnetwork for 12 machines of which one is of another client, and 20 that
// are requested at once: 11 are created, and no request is rejected for lack of addresses.
func TestAddresses(t *testing.T) {
	s := gcetest.New()
	s.SetSubnet("small", "10.3.0.0/28", 1)
	inBubble(t, s, func(t *testing.T, w *world) {
		w.options.Subnets["small"] = Subnet{Subnetwork: "small"}
		h := w.startProvider()
		spec := newSpec(t)
		spec.Subnet = "small"
		want, rejected := map[string]instance.State{}, 0
		for range 20 {
			spec.ID = providertest.NewID(t)
			if err := h.Create(t.Context(), spec); err != nil {
				_, ok := provider.AsCapacityError(err)
				assert.True(t, ok, err)
				rejected++
				continue
			}
			want[spec.ID] = instance.Running
		}
		assert.Equal(t, 9, rejected)
		h.Await(workers, want)
		assert.Len(t, w.Made(), 11)
		assert.Empty(t, h.Failures, "failures")
		assert.Equal(t, 11, w.Calls()["compute.instances.insert"])
	})
}

// TestAQuotaForTenMinutes: few requests, and it recovers without help.
func TestAQuotaForTenMinutes(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		h := w.startProvider()
		w.SetQuota(0)
		spec := newSpec(t)
		spec.ID = providertest.NewID(t)
		for range 600 {
			_ = h.Create(t.Context(), spec) // is tried again
			time.Sleep(time.Second)
		}
		assert.LessOrEqual(t, w.Calls()["compute.instances.insert"], 6)
		for len(h.Failures) > 0 {
			require.ErrorContains(t, (<-h.Failures).Err, "QUOTA_EXCEEDED")
		}
		w.SetQuota(100)
		for h.States(workers)[spec.ID] != instance.Running {
			_ = h.Create(t.Context(), spec) // is tried again
			time.Sleep(time.Second)
		}
		assert.Equal(t, []string{spec.ID}, w.Made())
	})
}

// TestManyMachines need few calls. A minute of throttling neither loses nor doubles any.
func TestManyMachines(t *testing.T) {
	s := gcetest.New()
	s.PageSize = 40
	inBubble(t, s, func(t *testing.T, w *world) {
		h := w.startProvider()
		want := map[string]instance.State{}
		for range 80 {
			want[h.MustCreate(newSpec(t))] = instance.Running
		}
		time.Sleep(10 * time.Second)
		throttle := &gcetest.Fault{Before: true, Status: 403, Code: "rateLimitExceeded", Message: "Rate Limit Exceeded"}
		w.SetFaults(throttle)
		time.Sleep(time.Minute)
		assert.Less(t, w.Seen(throttle), 150, "calls while they are throttled")
		w.SetFaults()
		h.Await(workers, want)
		assert.Len(t, w.Made(), 80)
		assert.Empty(t, h.Failures, "failures")

		time.Sleep(5 * time.Minute)
		w.Calls()
		time.Sleep(10 * time.Minute)
		calls := w.Calls()
		assert.LessOrEqual(t, calls["compute.instances.list"], 44, "pages of lists in ten minutes")
		assert.Len(t, calls, 1, "%v", calls)
		for id := range want {
			h.MustDelete(id)
		}
		for len(h.States(workers)) > 0 {
			<-h.Changes
		}
		assert.Equal(t, 80, w.Calls()["compute.instances.delete"])
		assert.Empty(t, w.Disks())
	})
}

// TestASlowOperationNeedsAnotherNonce: the machine of the first request is the only one.
func TestASlowOperationNeedsAnotherNonce(t *testing.T) {
	for _, lenient := range []bool{false, true} {
		s := gcetest.New()
		s.OperationTime, s.Lenient = 5*time.Minute, lenient
		inBubble(t, s, func(t *testing.T, w *world) {
			h := w.startProvider()
			spec := newSpec(t)
			spec.ID = providertest.NewID(t)
			for n := 0; h.States(workers)[spec.ID] != instance.Running; n++ {
				if _, known := h.Get(spec.ID); !known {
					spec.Userdata = []byte{byte('a' + n%26)}
					h.MustCreate(spec)
				}
				time.Sleep(time.Second)
			}
			assert.Equal(t, []string{spec.ID}, w.Made())
			assert.Equal(t, []string{spec.ID}, w.All())
			for len(h.Failures) > 0 {
				require.ErrorContains(t, (<-h.Failures).Err, "is being created")
			}
		})
	}
}

// TestTheLabelsOfAUser do not replace the labels of the server.
func TestTheLabelsOfAUser(t *testing.T) {
	o := &Options{Machine: map[string]any{argImage: gcetest.Image}}
	_, err := o.arguments(map[string]any{argLabels: map[string]any{"nstance-instance-id": "x"}})
	require.ErrorContains(t, err, "labels that begin with nstance- are the server's own")

}

// TestAnInstanceOfNoRecord is reported like any other: the server decides what to do with it.
func TestAnInstanceOfNoRecord(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		r.Origin = instance.Origin{OnDemand: true, IdempotencyKey: "key"}
		w.launch(r)
		h := w.startProvider()
		h.Await(workers, map[string]instance.State{r.ID: instance.Running})
		vm, _ := h.Get(r.ID)
		assert.Equal(t, r.Origin, vm.Origin)
	})
}
