// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package statemetrics

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

var machines = newDesc("machines",
	"NstanceMachines by group, shard and state: creating without an instance, provisioning until the instance has run, running, not_running, or deleting. The shard is empty before one is selected; a state without machines is missing.",
	"group", "shard", "state")

// machineState is what NstanceMachines are counted by.
type machineState struct {
	groupOnShard
	state string
}

func (c *Collector) collectMachines(metrics chan<- prometheus.Metric) {
	// A lister of a cache returns no errors.
	objects, _ := c.sources.Machines.List(labels.Everything())
	counts := map[machineState]int{}
	for _, machine := range objects {
		of := groupOnShard{string(machine.Spec.GroupRef.Name), cmp.Or(machine.Status.Shard, string(machine.Spec.Shard))}
		counts[machineState{of, stateOf(machine)}]++
	}
	for key, count := range counts {
		metrics <- gauge(machines, float64(count), key.group, key.shard, key.state)
	}
}

// stateOf returns the state of an NstanceMachine as a label.
func stateOf(machine *v1beta1.NstanceMachine) string {
	switch {
	case machine.DeletionTimestamp != nil:
		return "deleting"
	case machine.Status.InstanceID == "":
		return "creating"
	case !ptr.Deref(machine.Status.Initialization.Provisioned, false):
		return "provisioning"
	case ptr.Deref(machine.Status.Ready, false):
		return "running"
	default:
		return "not_running"
	}
}
