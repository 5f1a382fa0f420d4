// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// observed is a pool with Machines and these instances on shard a, of which it
// knows nothing more.
func observed(ids ...string) observation {
	seen := observation{
		pool: newPool("a"), machinePools: []*clusterv1.MachinePool{newMachinePool()},
		members: map[string]*v1beta1.NstanceMachine{}, strangers: sets.New[string](), machines: map[string]*clusterv1.Machine{},
		now: start,
	}
	for _, id := range ids {
		seen.listed = append(seen.listed, instance{id, "a"})
	}
	return seen
}

// with is an observation in which something is different.
func with(seen observation, changes ...func(*observation)) observation {
	for _, change := range changes {
		change(&seen)
	}
	return seen
}

func members(all ...*v1beta1.NstanceMachine) func(*observation) {
	return func(seen *observation) {
		for _, member := range all {
			seen.members[member.Name] = member
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

func chosen(ids ...string) func(*observation) {
	return func(seen *observation) { seen.chosen = ids }
}

func off(seen *observation)      { seen.pool.Status.InfrastructureMachineKind = "" }
func isPaused(seen *observation) { seen.paused = "somebody" }
func poolGoes(seen *observation) { seen.pool = deleted(seen.pool) }
func machinePoolGoes(seen *observation) {
	seen.machinePools = []*clusterv1.MachinePool{deleted(newMachinePool())}
}
func machinePoolGone(seen *observation) { seen.machinePools = nil }
func secondMachinePool(seen *observation) {
	seen.machinePools = append(seen.machinePools, newMachinePool())
}
func strangerHas(id string) func(*observation) {
	return func(seen *observation) { seen.strangers.Insert(id) }
}

// sightedBefore is that a Machine has been without its NstanceMachine for some time.
func sightedBefore(id string, age time.Duration) func(*observation) {
	return func(seen *observation) {
		seen.memory.sighted = map[types.UID]time.Time{newMachine(id).UID: start.Add(-age)}
	}
}

// told is a decision in words.
func told(d decision) string {
	var words []string
	say := func(what string, names ...string) {
		if len(names) > 0 {
			words = append(words, what+" "+strings.Join(names, " "))
		}
	}
	var create []string
	for _, instance := range d.create {
		create = append(create, instance.id+" on "+instance.shard)
	}
	say("create", create...)
	say("taken", d.taken...)
	say("delete Machines", names(d.removeMachines)...)
	say("delete members", names(d.removeMembers)...)
	say("delete orphans", names(d.removeOrphans)...)
	if d.wait > 0 {
		words = append(words, fmt.Sprintf("wait %s", d.wait))
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
		"nothing at all":                        {observed(), ""},
		"new instances":                         {observed("i-1", "i-2"), "create i-1 on a i-2 on a"},
		"one has its member":                    {with(observed("i-1", "i-2"), members(stored("i-1"))), "create i-2 on a"},
		"one had its member":                    {with(observed("i-1", "i-2"), func(seen *observation) { seen.memory.had = map[string]string{"i-1": "a"} }), "create i-2 on a"},
		"its member is leaving":                 {with(observed("i-1"), members(deleted(stored("i-1")))), ""},
		"a stranger has the name":               {with(observed("i-1", "i-2"), strangerHas("i-1")), "create i-2 on a; taken i-1"},
		"Machines are off":                      {with(observed("i-1"), off), ""},
		"paused":                                {with(observed("i-1"), isPaused), ""},
		"the pool goes":                         {with(observed("i-1"), poolGoes), ""},
		"the MachinePool goes":                  {with(observed("i-1"), machinePoolGoes), ""},
		"there is no MachinePool":               {with(observed("i-1"), machinePoolGone), ""},
		"it is not clear which MachinePool":     {with(observed("i-1"), secondMachinePool), ""},
		"a member whose shard lists it no more": {with(observed(), members(stored("i-1")), machines(newMachine("i-1"))), ""},

		"chosen":                            {with(observed("i-1", "i-2"), members(stored("i-1"), stored("i-2")), machines(newMachine("i-1"), newMachine("i-2")), chosen("i-2")), "delete Machines i-2"},
		"chosen, and goes already":          {with(observed("i-1"), members(stored("i-1")), machines(deleted(newMachine("i-1"))), chosen("i-1")), ""},
		"chosen, Machines are off":          {with(observed("i-1"), members(stored("i-1")), machines(newMachine("i-1")), chosen("i-1"), off), "delete Machines i-1"},
		"chosen and paused":                 {with(observed("i-1"), members(stored("i-1")), machines(newMachine("i-1")), chosen("i-1"), isPaused), ""},
		"chosen, no Machine yet":            {with(observed("i-1"), members(stored("i-1")), chosen("i-1")), ""},
		"chosen, and never gets a Machine":  {with(observed("i-1"), members(stored("i-1")), chosen("i-1"), machinePoolGone), "delete members i-1"},
		"chosen, and is gone":               {with(observed(), chosen("i-1")), ""},
		"chosen, and only the Machine left": {with(observed(), machines(newMachine("i-1")), chosen("i-1")), "delete Machines i-1"},

		"the pool goes with its Machines":  {with(observed("i-1", "i-2"), members(stored("i-1"), stored("i-2")), machines(newMachine("i-1"), newMachine("i-2")), poolGoes, machinePoolGoes), "delete Machines i-1 i-2"},
		"the pool goes, a Machine does":    {with(observed("i-1"), members(stored("i-1")), machines(deleted(newMachine("i-1"))), poolGoes), ""},
		"the pool goes, no Machine yet":    {with(observed("i-1"), members(stored("i-1")), poolGoes), ""},
		"the pool goes, no Machine ever":   {with(observed("i-1"), members(stored("i-1")), poolGoes, machinePoolGoes), "delete members i-1"},
		"the pool goes without a Machine":  {with(observed("i-1"), members(stored("i-1")), poolGoes, machinePoolGone), "delete members i-1"},
		"the pool goes, a member does too": {with(observed("i-1"), members(deleted(stored("i-1"))), poolGoes, machinePoolGone), ""},
		"the pool goes and is paused":      {with(observed("i-1"), members(stored("i-1")), machines(newMachine("i-1")), poolGoes, isPaused), ""},

		"an orphan seen first":           {with(observed(), machines(newMachine("i-1"))), "wait 10s"},
		"an orphan seen again":           {with(observed(), machines(newMachine("i-1")), sightedBefore("i-1", 7*time.Second)), "wait 3s"},
		"an orphan seen for long enough": {with(observed(), machines(newMachine("i-1")), sightedBefore("i-1", 10*time.Second)), "delete orphans i-1; wait 10s"},
		"an orphan, Machines are off":    {with(observed(), machines(newMachine("i-1")), sightedBefore("i-1", 10*time.Second), off), "delete orphans i-1; wait 10s"},
		"an orphan that goes":            {with(observed(), machines(deleted(newMachine("i-1"))), sightedBefore("i-1", time.Minute)), ""},
		"an orphan and paused":           {with(observed(), machines(newMachine("i-1")), sightedBefore("i-1", time.Minute), isPaused), ""},
		"no orphan: a stranger's":        {with(observed(), machines(newMachine("i-1")), strangerHas("i-1"), sightedBefore("i-1", time.Minute)), ""},
		"no orphan: a member's":          {with(observed("i-1"), machines(newMachine("i-1")), members(stored("i-1")), sightedBefore("i-1", time.Minute)), ""},
		"the next of three orphans":      {with(observed(), machines(newMachine("i-1"), newMachine("i-2"), newMachine("i-3")), sightedBefore("i-2", 7*time.Second)), "wait 3s"},
		"the first of two orphans":       {with(observed(), machines(newMachine("i-1"), newMachine("i-2")), sightedBefore("i-2", 10*time.Second)), "delete orphans i-2; wait 10s"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := told(plan(test.seen)); got != test.want {
				t.Errorf("decided %q, want %q", got, test.want)
			}
		})
	}
}

// A Machine that has its NstanceMachine again begins anew.
func TestSightingsAreForgotten(t *testing.T) {
	sighted := func(seen observation) []time.Time {
		var times []time.Time
		for _, first := range plan(seen).sighted {
			times = append(times, first)
		}
		return times
	}
	before := sightedBefore("i-1", 5*time.Second)
	if got := sighted(with(observed(), machines(newMachine("i-1")), before)); !slices.Equal(got, []time.Time{start.Add(-5 * time.Second)}) {
		t.Errorf("an orphan was sighted at %v", got)
	}
	if got := sighted(with(observed(), machines(newMachine("i-1")), before, isPaused)); len(got) != 1 {
		t.Errorf("a paused orphan was sighted at %v", got)
	}
	if got := sighted(with(observed(), machines(newMachine("i-1")), members(stored("i-1")), before)); len(got) != 0 {
		t.Errorf("what is no orphan was sighted at %v", got)
	}
}
