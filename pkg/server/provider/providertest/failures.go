// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

func (s *suite) testQuota() {
	h := s.start()
	limited := func(group instance.GroupKey, quota int32) provider.Spec {
		spec := s.spec(group)
		spec.Type.Quota = ptr.To(quota)
		return spec
	}
	expectFull := func(quota int32) {
		s.t.Helper()
		s.expectRejected(h, limited(workers, quota), s.Type.Name)
	}
	// Pending instances count, in any group and tenant, but only of this type.
	first, second := h.MustCreate(limited(workers, 2)), h.MustCreate(limited(otherWorkers, 2))
	expectFull(2)
	other := s.spec(workers)
	other.Type = s.OtherType
	h.MustCreate(other)
	// Running instances count, including instances of other processes.
	h.Await(workers, map[string]instance.State{first: instance.Running})
	h.Await(otherWorkers, map[string]instance.State{second: instance.Running})
	expectFull(2)
	h.Stop()
	h = s.start()
	expectFull(2)
	// The instances of another shard do not count.
	s.startFor("test", "b").MustCreate(limited(workers, 1))

	// A higher quota, no quota, and deletions make room.
	third := h.MustCreate(limited(workers, 3))
	fourth := h.MustCreate(s.spec(workers))
	for _, id := range []string{third, first, fourth} {
		h.MustDelete(id)
	}
	fifth := h.MustCreate(limited(workers, 2))
	expectFull(2)
	h.Await(workers, map[string]instance.State{first: Deleted, third: Deleted, fourth: Deleted, fifth: instance.Running})
	expectFull(2)
	expectFull(0)
}

// expectRejected expects that Create fails with an error that names the exhausted resource,
// and that the instance does not exist.
func (s *suite) expectRejected(h *Harness, spec provider.Spec, name string) {
	s.t.Helper()
	spec.ID = NewID(s.t)
	if err := h.Create(s.t.Context(), spec); err == nil || !strings.Contains(err.Error(), name) {
		s.t.Errorf("got %v, want an error that names %s", err, name)
	}
	if vm, known := h.Get(spec.ID); known {
		s.t.Errorf("it is requested all the same: %v", vm)
	}
}

func (s *suite) testCapacity() {
	h := s.start()
	small := func(group instance.GroupKey) provider.Spec {
		spec := s.spec(group)
		spec.Subnet = s.LimitedSubnet
		return spec
	}
	expect := func(want int) {
		s.t.Helper()
		if got, err := h.Capacity(s.t.Context(), s.LimitedSubnet); err != nil || got != want {
			s.t.Errorf("there is room for %d, %v, want %d", got, err, want)
		}
	}
	expect(2)
	// Pending and running instances need room, in any group and tenant, including instances of
	// other processes.
	first := h.MustCreate(small(workers))
	expect(1)
	second := h.MustCreate(small(otherWorkers))
	elsewhere := h.MustCreate(s.spec(workers))
	expect(0)
	// If a process stops while it creates a machine, the provider may count the machine in every
	// subnet.
	h.Await(workers, map[string]instance.State{first: instance.Running, elsewhere: instance.Running})
	h.Await(otherWorkers, map[string]instance.State{second: instance.Running})
	expect(0)
	h.Stop()
	h = s.start()
	expect(0)
	// Another caller may have been faster since Capacity.
	s.expectRejected(h, small(workers), s.LimitedSubnet)
	h.MustDelete(second)
	h.Await(otherWorkers, map[string]instance.State{second: Deleted})
	expect(1)
	h.MustCreate(small(workers))
	if got, err := h.Capacity(s.t.Context(), s.Subnet); err != nil || got < 1000 {
		s.t.Errorf("a subnet without a small limit has room for %d, %v", got, err)
	}
}

func (s *suite) testFailures() {
	h := s.start()
	s.FailCreate(3)
	id := h.MustRun(s.spec(workers))
	h.ExpectFailures(3, workers, id)
	s.expectCalls(4, 0)
	s.FailDelete(3)
	h.MustDelete(id)
	h.Await(workers, map[string]instance.State{id: Deleted})
	h.ExpectFailures(3, workers, id)
	s.expectCalls(0, 4)
}

func (s *suite) testLostResponse() {
	h := s.start()
	s.LoseResponse()
	h.MustRun(s.spec(workers))
	time.Sleep(s.QuietPeriod)
	if ids := s.Instances(); len(ids) != 1 || len(h.List(workers)) != 1 {
		s.t.Errorf("instances %v exist and %v are listed, want one", ids, h.List(workers))
	}
}

func (s *suite) testRejection() {
	h := s.start()
	spec := s.spec(workers)
	spec.ID, spec.Subnet = NewID(s.t), s.RejectedSubnet
	h.MustCreate(spec)
	h.Await(workers, map[string]instance.State{spec.ID: Deleted})
	h.ExpectFailures(1, workers, spec.ID)
	time.Sleep(s.QuietPeriod)
	s.expectCalls(1, 0)
	// A corrected request need not wait.
	spec.Subnet = s.Subnet
	h.MustRun(spec)
	h.ExpectFailures(0, workers, spec.ID)
}

func (s *suite) testCallContext() {
	h := s.start()
	id := h.MustRun(s.spec(workers))
	s.Calls()
	h.Leads.Store(false)
	pending := h.MustCreate(s.spec(workers))
	h.MustDelete(id)
	time.Sleep(s.QuietPeriod)
	s.expectCalls(0, 0)
	if states := h.States(workers); states[pending] != instance.Pending || states[id] != instance.Terminating {
		s.t.Errorf("the instances are %v, want %s pending and %s terminating", states, pending, id)
	}
	h.Leads.Store(true)
	h.Await(workers, map[string]instance.State{pending: instance.Running, id: Deleted})
}

func (s *suite) testRestart() {
	h := s.start()
	origins := map[string]instance.Origin{}
	for _, origin := range []instance.Origin{{}, {OnDemand: true, IdempotencyKey: "Any: text/\u00e9"}, {InfraConfigHash: strings.Repeat("0f", 32)}} {
		spec := s.spec(workers)
		if origin.OnDemand {
			spec = s.spec(otherWorkers)
		}
		spec.Origin = origin
		id := h.MustCreate(spec)
		vm, _ := h.Get(id)
		assert.Equal(s.t, origin, vm.Origin, "the origin of a pending instance")
		h.Await(spec.Group, map[string]instance.State{id: instance.Running})
		origins[id] = origin
	}
	all := func() map[string]instance.VM {
		vms := map[string]instance.VM{}
		for _, vm := range slices.Concat(h.List(workers), h.List(otherWorkers)) {
			vms[vm.ID] = vm
		}
		return vms
	}
	before := all()
	for id, origin := range origins {
		assert.Equal(s.t, origin, before[id].Origin, "the origin of instance %s", id)
	}
	h.Stop()
	s.Calls()

	h = s.start()
	if diff := cmp.Diff(before, all()); diff != "" || len(before) != 3 {
		s.t.Errorf("(-before +after):\n%s", diff)
	}
	if groups := h.Groups(); len(groups) != 2 || !slices.Contains(groups, workers) || !slices.Contains(groups, otherWorkers) {
		s.t.Errorf("the groups are %v", groups)
	}
	// Both groups are reported: one of them may no longer be configured.
	reported := map[instance.GroupKey]bool{}
	timeout := time.After(awaitTimeout)
	for !reported[workers] || !reported[otherWorkers] {
		select {
		case key := <-h.Changes:
			reported[key] = true
		case <-timeout:
			s.t.Fatalf("only %v were reported", reported)
		}
	}
	s.expectCalls(0, 0)
}

func (s *suite) testShards() {
	a := s.start()
	others := []*Harness{s.startFor("test", "b"), s.startFor("other", "a")}
	for _, other := range others {
		id := other.MustRun(s.spec(workers))
		a.MustDelete(id)
		if vm, known := a.Get(id); known {
			s.t.Errorf("another shard has %v", vm)
		}
	}
	time.Sleep(s.QuietPeriod)
	if len(a.List(workers)) != 0 || len(a.Groups()) != 0 || len(a.Changes) != 0 {
		s.t.Errorf("the instances are %v of groups %v, and %d changes were reported", a.List(workers), a.Groups(), len(a.Changes))
	}
	s.expectCalls(2, 0)
	for _, other := range others {
		assert.Len(s.t, other.List(workers), 1, "the other shard's instances")
	}
}
