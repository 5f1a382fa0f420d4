// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// marked returns a Machine with the conditions of a MachineHealthCheck.
func marked(machine *clusterv1.Machine, healthy, remediated metav1.ConditionStatus) *clusterv1.Machine {
	machine.Status.Conditions = []metav1.Condition{{Type: clusterv1.MachineHealthCheckSucceededCondition, Status: healthy}}
	if remediated != "" {
		machine.Status.Conditions = append(machine.Status.Conditions, metav1.Condition{Type: clusterv1.MachineOwnerRemediatedCondition, Status: remediated})
	}
	return machine
}

// A Machine is deleted only if a MachineHealthCheck requests that: an unhealthy one may
// be remediated by another controller, or not at all if too many are unhealthy.
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
