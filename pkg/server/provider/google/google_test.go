// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestStates of all statuses.
func TestStates(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		time.Sleep(w.BootTime)
		for status, want := range map[string]instance.State{
			"PROVISIONING": instance.Pending, "STAGING": instance.Pending, "PENDING": instance.Pending,
			"RUNNING": instance.Running, "REPAIRING": instance.Impaired,
			"STOPPING": instance.Stopped, "PENDING_STOP": instance.Stopped, "STOPPED": instance.Stopped, "TERMINATED": instance.Stopped,
			"SUSPENDING": instance.Stopped, "SUSPENDED": instance.Stopped, "DEPROVISIONING": instance.Terminating,
		} {
			state, _ := virtualMachine{Status: status}.state()
			assert.Equal(t, want, state, status)
			if status == "STAGING" || status == "PROVISIONING" {
				continue // it would run, or would be one that is being created
			}
			w.SetStatus(r.ID, status)
			m := w.list()[r.ID]
			assert.Equal(t, want, m.State, status)
			assert.Equal(t, want == instance.Impaired || want == instance.Stopped, m.Reason != "", "a reason for %s", status)
			// A listed VM is not missing, whatever its status.
			vm, found, err := w.api.Find(t.Context(), r.ID)
			require.NoError(t, err, status)
			assert.True(t, found, status)
			assert.Equal(t, m, vm, status)
		}
		state, reason := virtualMachine{Status: "MOVING"}.state()
		assert.Equal(t, instance.Impaired, state)
		assert.Contains(t, reason, "MOVING")
	})
}

// TestAMachineThatIsBeingCreated is not listed, and is neither found nor missing: the zone
// may have no capacity for it. Its instance is rejected then, and was never missing.
func TestAMachineThatIsBeingCreated(t *testing.T) {
	s := gcetest.New()
	s.OperationTime = time.Minute
	inBubble(t, s, func(t *testing.T, w *world) {
		w.SetExhausted("e2-small", standard, true)
		h := w.startProvider()
		id := h.MustCreate(newSpec(t))
		time.Sleep(30 * time.Second)
		assert.Equal(t, []string{id}, w.All())
		assert.Empty(t, w.list())
		_, _, err := w.api.Find(t.Context(), id)
		require.ErrorContains(t, err, "is being created")
		vm, _ := h.Get(id)
		assert.Equal(t, instance.VM{ID: id, Group: workers, State: instance.Pending}, vm)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		errs := h.ExpectFailures(1, workers, id)
		require.ErrorContains(t, errs[0], "ZONE_RESOURCE_POOL_EXHAUSTED")
	})
	assert.False(t, virtualMachine{Status: "PROVISIONING", LastStop: "2026-11-24T02:00:00Z"}.isBeingCreated())
}

// TestPreempted: the reason distinguishes a preempted spot VM from a spot VM that a user has
// stopped. Both exist, with their disks, until they are deleted.
func TestPreempted(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		h := w.startProvider()
		spec := newSpec(t)
		spec.Args = map[string]any{argProvisioning: spot}
		preempted, stopped, running := h.MustRun(spec), h.MustRun(spec), h.MustRun(spec)
		assert.Zero(t, w.Calls()["compute.zoneOperations.list"])
		w.Preempt(preempted)
		w.SetStatus(stopped, "TERMINATED")
		h.Await(workers, map[string]instance.State{preempted: instance.Stopped, stopped: instance.Stopped, running: instance.Running})
		vm, _ := h.Get(preempted)
		assert.Equal(t, "the spot machine was preempted", vm.Reason)
		vm, _ = h.Get(stopped)
		assert.Equal(t, "the virtual machine was stopped", vm.Reason)
		assert.Len(t, w.Disks(), 3)

		h.MustDelete(preempted)
		h.MustDelete(stopped)
		h.Await(workers, map[string]instance.State{preempted: providertest.Deleted, stopped: providertest.Deleted})
		assert.Equal(t, []string{running}, w.All())
		assert.Len(t, w.Disks(), 1)
		assert.Empty(t, h.Failures, "failures")
	})
}

// TestPreemptionsThatCannotBeRead leave the reason open, and the list complete.
func TestPreemptionsThatCannotBeRead(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		r.Args = map[string]any{argProvisioning: spot}
		w.launchRunning(r)
		w.Preempt(r.ID)
		w.SetFaults(&gcetest.Fault{Call: "zoneOperations.list", Before: true, Status: 403, Code: "forbidden", Message: "Required 'compute.zoneOperations.list' permission"})
		m := w.list()[r.ID]
		assert.Equal(t, instance.Stopped, m.State)
		assert.Equal(t, "the spot machine was stopped or preempted", m.Reason)
		other, found, err := w.api.Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, m, other)
	})
}

// TestPages: a list has all of them, or is an error.
func TestPages(t *testing.T) {
	s := gcetest.New()
	s.PageSize = 2
	inBubble(t, s, func(t *testing.T, w *world) {
		for range 5 {
			w.launch(request(t))
		}
		assert.Len(t, w.list(), 5)
		assert.Equal(t, 3, w.Calls()["compute.instances.list"])

		w.SetFaults(
			&gcetest.Fault{Call: "instances.list", Times: 1, Before: true, Status: http.StatusOK, Body: map[string]any{"kind": "compute#instanceList", "nextPageToken": "page-2"}},
			&gcetest.Fault{Call: "instances.list", Before: true, Status: http.StatusServiceUnavailable, Code: "backendError"})
		_, err := w.api.List(t.Context())
		require.ErrorContains(t, err, "backendError")
	})
}

// TestAMachineOnTwoPages is one: another one was created between them.
func TestAMachineOnTwoPages(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		made, _ := w.Machine(r.ID)
		w.SetFaults(&gcetest.Fault{Call: "instances.list", Times: 1, Before: true, Status: http.StatusOK, Body: map[string]any{
			"kind": "compute#instanceList", "nextPageToken": "page-0",
			"items": []any{map[string]any{"name": r.ID, "status": "RUNNING", "description": made.Description}},
		}})
		assert.Len(t, w.list(), 1)
	})
}

// TestIncompleteLists are errors.
func TestIncompleteLists(t *testing.T) {
	for name, body := range map[string]any{
		"nothing":         map[string]any{},
		"another kind":    map[string]any{"kind": "compute#operationList"},
		"no list":         []any{},
		"partial success": map[string]any{"kind": "compute#instanceList", "warning": map[string]any{"code": "PARTIAL_SUCCESS"}},
		"unreachable":     map[string]any{"kind": "compute#instanceList", "warning": map[string]any{"code": "UNREACHABLE"}},
		"without an end":  map[string]any{"kind": "compute#instanceList", "nextPageToken": "again"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
				w.SetFaults(&gcetest.Fault{Call: "instances.list", Before: true, Status: http.StatusOK, Body: body})
				_, err := w.api.List(t.Context())
				assert.Error(t, err)
			})
		})
	}
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		w.SetFaults(&gcetest.Fault{Call: "instances.list", Before: true, Status: http.StatusOK, Body: map[string]any{
			"kind": "compute#instanceList", "warning": map[string]any{"code": "NO_RESULTS_ON_PAGE"},
		}})
		assert.Empty(t, w.list())
	})
}

// TestFindIsCertain: only the response that the machine does not exist shows it.
func TestFindIsCertain(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		id := request(t).ID
		_, found, err := w.api.Find(t.Context(), id)
		require.NoError(t, err)
		assert.False(t, found)
		for name, fault := range map[string]*gcetest.Fault{
			"404 of a proxy":  {Status: 404},
			"another message": {Status: 404, Code: "notFound", Message: "The resource 'projects/test-project/zones/zone-a' was not found"},
			"403":             {Status: 403, Code: "forbidden"},
			"401":             {Status: 401, Code: "authError"},
			"500":             {Status: 500, Code: "backendError"},
			"an empty object": {Status: 200, Body: map[string]any{}},
			"another machine": {Status: 200, Body: map[string]any{"name": "other"}},
			"no response":     {},
		} {
			fault.Before = true
			w.SetFaults(fault)
			_, _, err := w.api.Find(t.Context(), id)
			assert.Error(t, err, name)
		}
	})
}

// TestLabelsThatAUserChanges: the machine is known as before, because its name finds it. A
// copy of it is no instance.
func TestLabelsThatAUserChanges(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		h := w.startProvider()
		id, other := h.MustRun(newSpec(t)), h.MustRun(newSpec(t))
		time.Sleep(time.Minute)
		h.DrainChanges()
		w.SetLabels(id, map[string]string{"nstance-managed": "false"})
		w.Copy(other, "my-copy")
		made, _ := w.Machine(other)
		made.Labels["nstance-group"] = "another"
		w.SetLabels(other, made.Labels)
		time.Sleep(10 * time.Minute)
		assert.Empty(t, h.Changes, "changes")
		assert.Equal(t, map[string]instance.State{id: instance.Running, other: instance.Running}, h.States(workers))
		h.MustDelete(id)
		h.MustDelete(other)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted, other: providertest.Deleted})
		assert.Equal(t, []string{"my-copy"}, w.All())
	})
}

// TestADescriptionThatAUserChanges: the machine must not count as one that does not exist, nor
// hide the others.
func TestADescriptionThatAUserChanges(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		launched := w.launch(r)
		other := request(t)
		w.launch(other)
		w.SetDescription(r.ID, "mine")
		list := w.list()
		assert.Len(t, list, 2)
		assert.Empty(t, list[other.ID].Unidentified)
		found, exists, err := w.api.Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.True(t, exists)
		for _, vm := range []cloud.VM{list[r.ID], found} {
			assert.Equal(t, launched.ProviderID, vm.ProviderID)
			assert.Empty(t, vm.Group)
			assert.Contains(t, vm.Unidentified, "its description does not say of which group its instance is")
		}
	})
}

// TestAnIPv6OnlySubnetwork has room, and its machines have IPv6 addresses.
func TestAnIPv6OnlySubnetwork(t *testing.T) {
	s := gcetest.New()
	s.AddIPv6Subnet("six")
	inBubble(t, s, func(t *testing.T, w *world) {
		w.options.Subnets["six"] = Subnet{Subnetwork: "six", StackType: ipv6Only}
		room, err := w.api.Room(t.Context(), "six")
		require.NoError(t, err)
		assert.Greater(t, room, 1000)
		r := request(t)
		r.Subnet = "six"
		m := w.launchRunning(r)
		require.Len(t, m.Addresses, 1)
		assert.True(t, m.Addresses[0].Is6())
	})
}

// TestRoom: the room is the number of free addresses in the subnetwork, or else its size, without the
// reserve.
func TestRoom(t *testing.T) {
	for _, without := range []bool{false, true} {
		s := gcetest.New()
		s.NoUtilization = without
		inBubble(t, s, func(t *testing.T, w *world) {
			w.launch(func() cloud.Request { r := request(t); r.Subnet = "two"; return r }())
			room, err := w.api.Room(t.Context(), "two")
			require.NoError(t, err)
			assert.Equal(t, map[bool]int{false: 1, true: 4}[without], room)
			w.options.AddressReserve = 10
			room, err = w.api.Room(t.Context(), "two")
			require.NoError(t, err)
			assert.Zero(t, room, "less than the reserve")
			room, err = w.api.Room(t.Context(), "full")
			require.NoError(t, err)
			assert.Equal(t, 1<<8-4-10, room)
			for _, subnet := range []string{"missing", "other"} {
				_, err = w.api.Room(t.Context(), subnet)
				require.Error(t, err)
			}
		})
	}
}

// TestTerminate: a VM that is being deleted is no error. A VM that does not exist gives
// cloud.ErrNotFound.
func TestTerminate(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		m := w.launch(r)
		missing := cloud.VM{ID: request(t).ID}
		for range 2 {
			errs := w.api.Terminate(t.Context(), []cloud.VM{m, missing})
			assert.Len(t, errs, 1)
			require.ErrorIs(t, errs[missing.ID], cloud.ErrNotFound)
		}
		time.Sleep(w.DeleteTime)
		assert.Empty(t, w.All())
		assert.Empty(t, w.Disks())
		w.SetFaults(&gcetest.Fault{Call: "instances.delete", Before: true, Status: 404})
		assert.Len(t, w.api.Terminate(t.Context(), []cloud.VM{m, missing}), 2, "errors")
		w.SetFaults(&gcetest.Fault{
			Call: "instances.delete", Before: true, Status: 404, Code: "notFound",
			Message: "The resource 'projects/test-project/zones/zone-a' was not found",
		})
		errs := w.api.Terminate(t.Context(), []cloud.VM{m, missing})
		assert.Len(t, errs, 2, "a response that names no machine")
		assert.NotErrorIs(t, errs[missing.ID], cloud.ErrNotFound)
	})
}

// TestOtherShards have machines of their own, in the same zone.
func TestOtherShards(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		other, err := newAPI(w.options, provider.Shard{ClusterID: "test", ID: "b", Region: gcetest.Region, Zone: testShard.Zone}, w.Transport())
		require.NoError(t, err)
		list, err := other.List(t.Context())
		require.NoError(t, err)
		assert.Empty(t, list)
		_, found, err := other.Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.False(t, found)
	})
}
