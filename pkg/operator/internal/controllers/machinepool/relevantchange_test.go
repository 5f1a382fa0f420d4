// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestRelevantChange(t *testing.T) {
	pool := newPool("a")
	newGroup := func() *v1beta1.NstanceShardGroup { return newShardGroup(pool, "a", 2) }
	scaling := func(message string) *v1beta1.NstanceShardGroup { return notReady(newGroup(), "Scaling", message) }
	with := func(group *v1beta1.NstanceShardGroup, change func(*v1beta1.NstanceShardGroup)) *v1beta1.NstanceShardGroup {
		change(group)
		return group
	}
	tests := map[string]struct {
		before, after *v1beta1.NstanceShardGroup
		want          bool
	}{
		"nothing": {ready(newGroup(), "i-1"), ready(newGroup(), "i-1"), false},
		"the time of the last sync": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.LastSyncTime = ptr.To(metav1.Now()) }), false,
		},
		"another instance": {ready(newGroup(), "i-1"), ready(newGroup(), "i-2"), true},
		"more replicas": {
			scaling(""), with(scaling(""), func(g *v1beta1.NstanceShardGroup) { g.Status.Replicas = ptr.To[int32](1) }), true,
		},
		"a drain": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.Draining = ptr.To[int32](1) }), true,
		},
		"a drain that is blocked": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.DrainsBlocked = ptr.To[int32](1) }), true,
		},
		"the reason of a blocked drain": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) {
				condition(g, v1beta1.ConditionDrainsProgressing, metav1.ConditionFalse, "DrainBlocked", "a Pod")
			}), false,
		},
		"static": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.IsStatic = ptr.To(true) }), true,
		},
		"another configuration": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.Config = &v1beta1.GroupConfig{Template: "x"} }), true,
		},
		"it began to scale": {
			ready(newGroup()), with(scaling("0 of 2"), func(g *v1beta1.NstanceShardGroup) { g.Status.ObservedGeneration++ }), false,
		},
		"it still scales":              {scaling("0 of 2"), scaling("1 of 2"), false},
		"it is ready":                  {scaling("1 of 2"), ready(newGroup()), true},
		"it was rejected":              {scaling(""), notReady(newGroup(), "ConfigRejected", "no"), true},
		"another rejection":            {notReady(newGroup(), "ConfigRejected", "no"), notReady(newGroup(), "ConfigRejected", "never"), true},
		"it scales after a failure":    {notReady(newGroup(), "UpsertFailed", "oops"), scaling(""), true},
		"its shard became unreachable": {ready(newGroup()), away(ready(newGroup())), true},
		"it has seen a later spec":     {ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.ObservedGeneration++ }), true},
		"its labels were removed":      {ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Labels = nil }), true},
		"its finalizer was removed":    {ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Finalizers = nil }), true},
		"its owner was removed":        {ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.OwnerReferences = nil }), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := relevantChange(test.before, test.after); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
