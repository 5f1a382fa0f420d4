// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"cmp"

	"nstance.dev/operator/pkg/plugin/printing"
	"nstance.dev/operator/pkg/plugin/status"
)

// singleView is an instance that belongs to no pool.
type singleView struct {
	Key, Name, Group, Shard, Node, Pod, Age string
	State                                   badge
	Conditions                              []string
}

func singleViews(built *status.Status, options printing.Options) []singleView {
	var views []singleView
	for i := range built.OnDemand {
		machine := &built.OnDemand[i]
		v := singleView{
			Key: "single-" + machine.Namespace + "-" + machine.Machine, Name: machine.Machine, Group: machine.Group,
			Shard: cmp.Or(machine.Shard, "none"), Node: nodeName(&machine.Instance), Pod: cmp.Or(machine.Pod, "none"),
			Age:   age(&machine.Instance, options),
			State: badge{worse(instanceTone(&machine.Instance), conditionsTone(machine.Problems)), machine.Text(options)},
		}
		for j := range machine.Problems {
			v.Conditions = append(v.Conditions, machine.Problems[j].Text(options))
		}
		views = append(views, v)
	}
	return views
}
