// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plan

import (
	"encoding/json"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Change is a setting of the pool that would be another, with what the change does to instances that
// run.
type Change struct {
	// Setting is the name of the field of the spec.
	Setting string `json:"setting"`
	// Before and After are the values as JSON, "" for a setting that is not set.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	Effect string `json:"effect"`
	// Replaces is set if the shards replace instances because of another value.
	Replaces bool `json:"replaces,omitempty"`
}

// effect is what another value of a setting does.
type effect struct {
	setting, text string
	replaces      bool
}

// replaceAll is the effect of a setting that only a new instance can receive.
const replaceAll = "each shard replaces its instances, one at a time or as spec.rotation says, except those that have the value already"

// effects are the effects of all settings of a pool, in the order of the output.
var effects = []effect{
	{setting: "group", text: "the group cannot be changed"},
	{setting: "shards", text: "the replicas are divided among these shards; a shard that is left out deletes its instances"},
	{setting: "template", text: replaceAll, replaces: true},
	{setting: "instanceType", text: replaceAll, replaces: true},
	{setting: "subnets", text: replaceAll, replaces: true},
	{setting: "vars", text: "files are sent to the instances that run; userdata and arguments of new instances only"},
	{setting: "loadBalancers", text: "the instances that run are registered and deregistered"},
	{setting: "drainTimeoutSeconds", text: "from the next drain on"},
	{setting: "candidates", text: newCandidates},
	{setting: "returnAfterSeconds", text: "from the next check on; instances that are not preferred are replaced when a better candidate was free of rejections for so long, as spec.rotation says"},
	{setting: "machineMode", text: "Machines are created or deleted; no instance is replaced"},
	{setting: "scaleDown", text: "from the next step of a scale-down on"},
	{setting: "rotation", text: "from the next replacement on; instances from before after, or as old as maxAgeSeconds, are outdated and replaced"},
	{setting: "remediation", text: "from the next check of a Node on, within seconds"},
	{setting: "node", text: "labels and taints of the Nodes that exist are changed, kubelets of new instances get them and maxPods; no instance is replaced"},
	{setting: "deletionPolicy", text: "when the pool is deleted"},
	{setting: "shortfall", text: "from the next shortfall on"},
	{setting: "providerIDList", text: "the operator sets it again"},
}

// changes returns the settings that differ between two versions of a pool.
func changes(before, after *v1beta1.NstanceMachinePool) []Change {
	was, is := settings(before), settings(after)
	var found []Change
	for _, effect := range effects {
		if was[effect.setting] != is[effect.setting] {
			change := Change{Setting: effect.setting, Before: was[effect.setting], After: is[effect.setting], Effect: effect.text, Replaces: effect.replaces}
			switch {
			case effect.setting == "rotation":
				change.Replaces = outdates(before.Spec.Rotation, after.Spec.Rotation)
			case effect.setting == "candidates", effect.setting == "instanceType" && len(before.Spec.Candidates)+len(after.Spec.Candidates) > 0:
				change.Effect, change.Replaces = candidatesEffect(&before.Spec, &after.Spec)
			}
			found = append(found, change)
		}
	}
	return found
}

// outdates reports whether another policy makes instances outdated that are not outdated now.
func outdates(before, after *v1beta1.RotationPolicy) bool {
	var was v1beta1.RotationPolicy
	if before != nil {
		was = *before
	}
	return after != nil && (after.After != nil && !after.After.Equal(was.After) || after.MaxAgeSeconds > 0 && after.MaxAgeSeconds != was.MaxAgeSeconds)
}

// settings returns the fields of the spec as JSON.
func settings(pool *v1beta1.NstanceMachinePool) map[string]string {
	// A spec that was read from JSON can be written as JSON.
	data, _ := json.Marshal(pool.Spec)
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(data, &fields)
	values := make(map[string]string, len(fields))
	for name, value := range fields {
		values[name] = string(value)
	}
	return values
}

// changesInstances reports whether the plan changes a setting for which the shards replace instances.
func (p *Plan) changesInstances() bool {
	for _, change := range p.Changes {
		if change.Replaces {
			return true
		}
	}
	return false
}
