// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
)

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
