// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// observed returns an observation of a pool whose instances have Machines, with these
// instances on shard a and no NstanceMachines.
func observed(ids ...string) observation {
	seen := observation{
		pool: newPool("a"), machinePools: []*clusterv1.MachinePool{newMachinePool()},
		nstanceMachines: map[string]*v1beta1.NstanceMachine{}, foreign: sets.New[string](), machines: map[string]*clusterv1.Machine{},
		now: start,
	}
	for _, id := range ids {
		seen.instances = append(seen.instances, instance{id, "a"})
	}
	return seen
}

// with returns a changed observation.
func with(seen observation, changes ...func(*observation)) observation {
	for _, change := range changes {
		change(&seen)
	}
	return seen
}

func nstanceMachines(all ...*v1beta1.NstanceMachine) func(*observation) {
	return func(seen *observation) {
		for _, nstanceMachine := range all {
			seen.nstanceMachines[nstanceMachine.Name] = nstanceMachine
		}
	}
}

func machines(all ...*clusterv1.Machine) func(*observation) {
	return func(seen *observation) {
		for _, machine := range all {
			seen.machines[machine.Spec.InfrastructureRef.Name] = machine
		}
	}
}

func selected(ids ...string) func(*observation) {
	return func(seen *observation) { seen.selected = ids }
}

func off(seen *observation)            { seen.pool.Status.InfrastructureMachineKind = "" }
func isPaused(seen *observation)       { seen.paused = "the pool" }
func poolInDeletion(seen *observation) { seen.pool = controllertest.Deleting(seen.pool) }
func machinePoolInDeletion(seen *observation) {
	seen.machinePools = []*clusterv1.MachinePool{controllertest.Deleting(newMachinePool())}
}
func machinePoolDeleted(seen *observation) { seen.machinePools = nil }
func secondMachinePool(seen *observation) {
	seen.machinePools = append(seen.machinePools, newMachinePool())
}
func foreignHas(id string) func(*observation) {
	return func(seen *observation) { seen.foreign.Insert(id) }
}

// orphanedFor records that a Machine has no NstanceMachine for some time.
func orphanedFor(id string, age time.Duration) func(*observation) {
	return func(seen *observation) {
		seen.state.orphanedSince = map[types.UID]time.Time{newMachine(id).UID: start.Add(-age)}
	}
}

// describe returns a decision as text.
func describe(d decision) string {
	var words []string
	add := func(what string, names ...string) {
		if len(names) > 0 {
			words = append(words, what+" "+strings.Join(names, " "))
		}
	}
	var create []string
	for _, instance := range d.create {
		create = append(create, instance.id+" on "+instance.shard)
	}
	add("create", create...)
	add("conflicts", d.conflicts...)
	add("delete Machines", names(slices.Concat(d.deleteSelected, d.deleteMachines))...)
	add("delete NstanceMachines", names(d.deleteWithoutMachine)...)
	add("delete orphans", names(d.deleteOrphans)...)
	if d.requeueAfter > 0 {
		words = append(words, fmt.Sprintf("wait %s", d.requeueAfter))
	}
	return strings.Join(words, "; ")
}

func names[T interface{ GetName() string }](objects []T) []string {
	var names []string
	for _, object := range objects {
		names = append(names, object.GetName())
	}
	return names
}

func TestPlan(t *testing.T) {
	tests := map[string]struct {
		seen observation
		want string
	}{
		"nothing at all":                                 {observed(), ""},
		"new instances":                                  {observed("i-1", "i-2"), "create i-1 on a i-2 on a"},
		"one has its NstanceMachine":                     {with(observed("i-1", "i-2"), nstanceMachines(stored("i-1"))), "create i-2 on a"},
		"one had its NstanceMachine":                     {with(observed("i-1", "i-2"), func(seen *observation) { seen.state.shardOf = map[string]string{"i-1": "a"} }), "create i-2 on a"},
		"its NstanceMachine is being deleted":            {with(observed("i-1"), nstanceMachines(controllertest.Deleting(stored("i-1")))), ""},
		"a foreign NstanceMachine has the name":          {with(observed("i-1", "i-2"), foreignHas("i-1")), "create i-2 on a; conflicts i-1"},
		"Machines are off":                               {with(observed("i-1"), off), ""},
		"paused":                                         {with(observed("i-1"), isPaused), ""},
		"the pool is being deleted":                      {with(observed("i-1"), poolInDeletion), ""},
		"the MachinePool is being deleted":               {with(observed("i-1"), machinePoolInDeletion), ""},
		"there is no MachinePool":                        {with(observed("i-1"), machinePoolDeleted), ""},
		"it is not clear which MachinePool":              {with(observed("i-1"), secondMachinePool), ""},
		"an NstanceMachine that the shard does not list": {with(observed(), nstanceMachines(stored("i-1")), machines(newMachine("i-1"))), ""},

		"selected":                            {with(observed("i-1", "i-2"), nstanceMachines(stored("i-1"), stored("i-2")), machines(newMachine("i-1"), newMachine("i-2")), selected("i-2")), "delete Machines i-2"},
		"selected, in deletion already":       {with(observed("i-1"), nstanceMachines(stored("i-1")), machines(controllertest.Deleting(newMachine("i-1"))), selected("i-1")), ""},
		"selected, Machines are off":          {with(observed("i-1"), nstanceMachines(stored("i-1")), machines(newMachine("i-1")), selected("i-1"), off), "delete Machines i-1"},
		"selected and paused":                 {with(observed("i-1"), nstanceMachines(stored("i-1")), machines(newMachine("i-1")), selected("i-1"), isPaused), ""},
		"selected, no Machine yet":            {with(observed("i-1"), nstanceMachines(stored("i-1")), selected("i-1")), ""},
		"selected, and never gets a Machine":  {with(observed("i-1"), nstanceMachines(stored("i-1")), selected("i-1"), machinePoolDeleted), "delete NstanceMachines i-1"},
		"selected, and deleted":               {with(observed(), selected("i-1")), ""},
		"selected, and only the Machine left": {with(observed(), machines(newMachine("i-1")), selected("i-1")), "delete Machines i-1"},

		"a pool in deletion with Machines":           {with(observed("i-1", "i-2"), nstanceMachines(stored("i-1"), stored("i-2")), machines(newMachine("i-1"), newMachine("i-2")), poolInDeletion, machinePoolInDeletion), "delete Machines i-1 i-2"},
		"a pool in deletion, its Machine too":        {with(observed("i-1"), nstanceMachines(stored("i-1")), machines(controllertest.Deleting(newMachine("i-1"))), poolInDeletion), ""},
		"a pool in deletion, no Machine yet":         {with(observed("i-1"), nstanceMachines(stored("i-1")), poolInDeletion), ""},
		"a pool in deletion, no Machine ever":        {with(observed("i-1"), nstanceMachines(stored("i-1")), poolInDeletion, machinePoolInDeletion), "delete NstanceMachines i-1"},
		"a pool in deletion without MachinePool":     {with(observed("i-1"), nstanceMachines(stored("i-1")), poolInDeletion, machinePoolDeleted), "delete NstanceMachines i-1"},
		"a pool in deletion, its NstanceMachine too": {with(observed("i-1"), nstanceMachines(controllertest.Deleting(stored("i-1"))), poolInDeletion, machinePoolDeleted), ""},
		"a pool in deletion and paused":              {with(observed("i-1"), nstanceMachines(stored("i-1")), machines(newMachine("i-1")), poolInDeletion, isPaused), ""},

		"an orphan seen first":                {with(observed(), machines(newMachine("i-1"))), "wait 10s"},
		"an orphan seen again":                {with(observed(), machines(newMachine("i-1")), orphanedFor("i-1", 7*time.Second)), "wait 3s"},
		"an orphan seen for long enough":      {with(observed(), machines(newMachine("i-1")), orphanedFor("i-1", 10*time.Second)), "delete orphans i-1; wait 10s"},
		"an orphan, Machines are off":         {with(observed(), machines(newMachine("i-1")), orphanedFor("i-1", 10*time.Second), off), "delete orphans i-1; wait 10s"},
		"an orphan in deletion":               {with(observed(), machines(controllertest.Deleting(newMachine("i-1"))), orphanedFor("i-1", time.Minute)), ""},
		"an orphan and paused":                {with(observed(), machines(newMachine("i-1")), orphanedFor("i-1", time.Minute), isPaused), ""},
		"no orphan: a foreign NstanceMachine": {with(observed(), machines(newMachine("i-1")), foreignHas("i-1"), orphanedFor("i-1", time.Minute)), ""},
		"no orphan: an NstanceMachine":        {with(observed("i-1"), machines(newMachine("i-1")), nstanceMachines(stored("i-1")), orphanedFor("i-1", time.Minute)), ""},
		"the next of three orphans":           {with(observed(), machines(newMachine("i-1"), newMachine("i-2"), newMachine("i-3")), orphanedFor("i-2", 7*time.Second)), "wait 3s"},
		"the first of two orphans":            {with(observed(), machines(newMachine("i-1"), newMachine("i-2")), orphanedFor("i-2", 10*time.Second)), "delete orphans i-2; wait 10s"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := describe(plan(test.seen)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// If a Machine has its NstanceMachine again, its grace period restarts.
func TestOrphanedSinceIsDropped(t *testing.T) {
	orphaned := func(seen observation) []time.Time {
		var times []time.Time
		for _, first := range plan(seen).orphanedSince {
			times = append(times, first)
		}
		return times
	}
	before := orphanedFor("i-1", 5*time.Second)
	if got := orphaned(with(observed(), machines(newMachine("i-1")), before)); !slices.Equal(got, []time.Time{start.Add(-5 * time.Second)}) {
		t.Errorf("an orphan since %v", got)
	}
	if got := orphaned(with(observed(), machines(newMachine("i-1")), before, isPaused)); len(got) != 1 {
		t.Errorf("a paused orphan since %v", got)
	}
	if got := orphaned(with(observed(), machines(newMachine("i-1")), nstanceMachines(stored("i-1")), before)); len(got) != 0 {
		t.Errorf("no orphan, but since %v", got)
	}
}

// marked returns a Machine with the conditions of a MachineHealthCheck.
func marked(machine *clusterv1.Machine, healthy, remediated metav1.ConditionStatus) *clusterv1.Machine {
	machine.Status.Conditions = []metav1.Condition{{Type: clusterv1.MachineHealthCheckSucceededCondition, Status: healthy}}
	if remediated != "" {
		machine.Status.Conditions = append(machine.Status.Conditions, metav1.Condition{Type: clusterv1.MachineOwnerRemediatedCondition, Status: remediated})
	}
	return machine
}

// A Machine is deleted only if a MachineHealthCheck requests it: another controller may
// remediate an unhealthy Machine, or no controller if too many are unhealthy.
func TestUnhealthyMachinesAreReplaced(t *testing.T) {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	for name, test := range map[string]struct {
		machine *clusterv1.Machine
		change  func(*observation)
		want    string
	}{
		"no health check":                  {newMachine("i-1"), nil, ""},
		"healthy":                          {marked(newMachine("i-1"), yes, ""), nil, ""},
		"unhealthy, without a request":     {marked(newMachine("i-1"), no, ""), nil, ""},
		"unhealthy":                        {marked(newMachine("i-1"), no, no), nil, "delete Machines i-1"},
		"unhealthy, in deletion":           {controllertest.Deleting(marked(newMachine("i-1"), no, no)), nil, ""},
		"remediated":                       {marked(newMachine("i-1"), no, yes), nil, ""},
		"healthy again":                    {marked(newMachine("i-1"), yes, no), nil, ""},
		"itself paused":                    {controllertest.Paused(marked(newMachine("i-1"), no, no)), nil, ""},
		"the pool paused":                  {marked(newMachine("i-1"), no, no), isPaused, ""},
		"selected too":                     {marked(newMachine("i-1"), no, no), selected("i-1"), "delete Machines i-1"},
		"Machines are off":                 {marked(newMachine("i-1"), no, no), off, "delete Machines i-1"},
		"the MachinePool is being deleted": {marked(newMachine("i-1"), no, no), machinePoolInDeletion, "delete Machines i-1"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := with(observed("i-1"), nstanceMachines(stored("i-1")), machines(test.machine))
			if test.change != nil {
				test.change(&seen)
			}
			if got := describe(plan(seen)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
