// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"context"
	"slices"
	"sync"
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
)

// shownEnded is a cloud that shows for a while that it has terminated machines.
type shownEnded struct {
	cloud.API
	// mu guards ended.
	mu    sync.Mutex
	ended []cloud.VM
}

// show makes the cloud show the machines as ended.
func (s *shownEnded) show(ended ...cloud.VM) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = ended
}

func (s *shownEnded) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := s.API.List(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(list, s.ended...), err
}

func (s *shownEnded) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	vm, found, err := s.API.Find(ctx, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.IndexFunc(s.ended, func(vm cloud.VM) bool { return vm.ID == id }); !found && err == nil && at >= 0 {
		return s.ended[at], true, nil
	}
	return vm, found, err
}

// TestMachinesThatHaveEnded: an instance has ended only if its own machine has, and only while
// it is known.
func TestMachinesThatHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := cloudtest.NewCloud()
		api := &shownEnded{API: fake.API(shard)}
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(api, cloud.Options{CallContext: callContext})
		})
		id := h.MustRun(spec("one"))
		vm, _ := h.Get(id)
		ended := cloud.VM{ID: id, ProviderID: vm.ProviderID, Group: workers, State: instance.Stopped, Reason: "why", Ended: true}
		duplicate, unknown := ended, ended
		duplicate.ProviderID, unknown.ID = "i-000", providertest.NewID(t)
		api.show(duplicate, unknown)
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]instance.State{id: instance.Running}, h.States(workers), "a machine of the same instance, and one of none")
		assert.Empty(t, h.Failures)

		// The list leaves out the machine, and shows that another of the instance has ended.
		api.show(duplicate)
		fake.Vanish(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})

		id = h.MustRun(spec("two"))
		vm, _ = h.Get(id)
		ended.ID, ended.ProviderID = id, vm.ProviderID
		fake.Vanish(id)
		api.show(ended)
		h.Await(workers, map[string]instance.State{id: instance.Stopped})
		vm, _ = h.Get(id)
		assert.Equal(t, "why", vm.Reason)
		_, found, err := h.Provider.(provider.Finder).Find(t.Context(), id)
		require.NoError(t, err)
		assert.False(t, found, "it certainly exists no more")
		h.MustDelete(id)
		assert.Empty(t, h.List(workers))
		time.Sleep(time.Hour)
		assert.Empty(t, h.List(workers))
		assert.Empty(t, fake.Terminated())
	})
}

// unidentified is a cloud that does not show the identities of some machines.
type unidentified struct {
	*refusing
}

func (u unidentified) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := u.API.List(ctx)
	for n := range list {
		list[n] = u.strip(list[n])
	}
	return list, err
}

func (u unidentified) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	vm, found, err := u.API.Find(ctx, id)
	return u.strip(vm), found, err
}

// strip removes the identity of a hidden machine.
func (u unidentified) strip(vm cloud.VM) cloud.VM {
	if !u.isHidden(vm.ID) {
		return vm
	}
	return cloud.VM{ID: vm.ID, State: vm.State, Unidentified: "its notes were edited"}
}

// TestAMachineThatCannotBeIdentified is the machine of its record, reported once, and not
// terminated before it is identified. Without a record it is left alone.
func TestAMachineThatCannotBeIdentified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := cloudtest.NewCloud()
		api := unidentified{&refusing{API: fake.API(shard)}}
		start := func() *providertest.Harness {
			return providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
				return cloud.New(api, cloud.Options{CallContext: callContext})
			})
		}
		h := start()
		recorded, unrequested, unrecorded := h.MustRun(spec("one")), h.MustRun(spec("two")), h.MustRun(spec("three"))
		record, _ := h.Get(recorded)
		h.Stop()
		api.set(nil, []string{recorded, unrequested, unrecorded})
		h = start()
		assert.Empty(t, h.Groups())
		h.Provider.(provider.Expecter).Expect([]instance.VM{record, {ID: unrequested, Group: workers}})
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]instance.State{recorded: instance.Running}, h.States(workers))
		errs := h.ExpectFailures(1, workers, recorded)
		require.ErrorContains(t, errs[0], "its notes were edited")
		got, _ := h.Get(recorded)
		assert.Equal(t, record.ProviderID, got.ProviderID)
		s := spec("again")
		s.ID = unrequested
		h.MustRun(s)
		assert.Len(t, fake.Made(), 3, "the record without a provider id has its machine")
		fake.Become(recorded, instance.Stopped, "why")
		h.Await(workers, map[string]instance.State{recorded: instance.Stopped})

		h.MustDelete(recorded)
		time.Sleep(time.Hour)
		assert.Empty(t, fake.Terminated())
		api.set(nil, nil)
		h.Await(workers, map[string]instance.State{recorded: providertest.Deleted, unrecorded: instance.Running})
		assert.Equal(t, []string{recorded}, fake.Terminated())
	})
}
