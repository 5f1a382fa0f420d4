// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
	"nstance.dev/operator/pkg/plugin/status"
)

// cases are snapshots by the name of their golden file.
var cases = map[string]func() *objects.Snapshot{
	"at-rest": plugintest.AtRest,
	"scaling": func() *objects.Snapshot {
		s := plugintest.AtRest()
		*s.MachinePools.Items[0].Spec.Replicas = 5
		pool := &s.Pools.Items[0].Status
		*pool.DesiredReplicas = 5
		plugintest.SetCondition(&pool.Conditions, v1beta1.ConditionScalingUp, metav1.ConditionTrue, v1beta1.ReasonScalingUp,
			"fewer instances run than are wanted on b")
		plugintest.Group(s, "b").Spec.Size = 2
		return s
	},
	// Shard b has fallen back, and c has not reported.
	"candidates": func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Candidates(s)
		return s
	},
	"shard-away": func() *objects.Snapshot {
		s := plugintest.AtRest()
		for _, kind := range []string{v1beta1.ConditionReady, v1beta1.ConditionShardReachable} {
			plugintest.SetCondition(&plugintest.Group(s, "b").Status.Conditions, kind, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "connection refused")
		}
		pool := &s.Pools.Items[0].Status.Conditions
		plugintest.SetCondition(pool, v1beta1.ConditionShardsReachable, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "not connected: b")
		plugintest.SetCondition(pool, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "b: connection refused")
		return s
	},
	"nodes": func() *objects.Snapshot {
		s := plugintest.AtRest()
		// a1 is not ready, a2 has no Node, b1 has two, and c1 is being drained.
		s.Nodes.Items[0].Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: plugintest.Ago(5 * time.Minute)}
		s.Nodes.Items[1].Spec.ProviderID = "kwok:///a/other"
		other := plugintest.NewNode("b", "b1")
		other.Name = "b1-copy"
		s.Nodes.Items = append(s.Nodes.Items, other)
		plugintest.Drain(s, "c", "c1", "config-drift")
		plugintest.AddPod(s, "c1", "web-0", nil)
		plugintest.AddBudget(s, "web", "web-0", 0)
		return s
	},
	"machines": func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.AddMachines(s, "a", "a1")
		_, machine := plugintest.AddMachines(s, "b", "b1")
		deleted := plugintest.Ago(4 * time.Minute)
		machine.DeletionTimestamp = &deleted
		plugintest.SetCondition(&machine.Status.Conditions, clusterv1.MachineDeletingCondition, metav1.ConditionTrue,
			clusterv1.MachineDeletingDrainingNodeReason, "Drain not completed yet:\n* Pod web/web-0: cannot evict")
		s.Pods = map[string]objects.Read[corev1.Pod]{"b1": {}}
		plugintest.AddOnDemand(s)
		return s
	},
	"unidentified-drain": func() *objects.Snapshot {
		s := plugintest.AtRest()
		*plugintest.Group(s, "a").Status.DrainingReplicas = 1
		*s.Pools.Items[0].Status.DrainingReplicas = 1
		return s
	},
	"lent": func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Group(s, "a").Spec.Loan = plugintest.Borrowed()
		plugintest.SetCondition(&s.Pools.Items[0].Status.Conditions, v1beta1.ConditionCapacityAvailable, metav1.ConditionFalse, v1beta1.ReasonMoved, "1 of 1 instances are lent by shard b to shards a (1)")
		return s
	},
	"nodes-forbidden": func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.Nodes = objects.Unread[corev1.Node]("forbidden to list nodes")
		plugintest.AddOnDemand(s)
		return s
	},
	"nstance-machines-forbidden": func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.NstanceMachines = objects.Unread[v1beta1.NstanceMachine]("forbidden to list nstancemachines")
		return s
	},
	"pods-forbidden": func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "scale-down")
		s.Pods["a1"] = objects.Unread[corev1.Pod]("forbidden to list pods")
		return s
	},
	"shard-groups-forbidden": func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.ShardGroups = objects.Unread[v1beta1.NstanceShardGroup]("forbidden to list nstanceshardgroups")
		s.MachinePools = objects.Unread[clusterv1.MachinePool]("forbidden to list machinepools")
		return s
	},
}

func TestBuildAndPrint(t *testing.T) {
	for name, snapshot := range cases {
		t.Run(name, func(t *testing.T) {
			built := status.Build(snapshot())
			plugintest.Golden(t, name+".yaml", plugintest.YAML(t, built))
			var printed bytes.Buffer
			if err := status.Print(&printed, built, status.PrintOptions{Now: plugintest.Now}); err != nil {
				t.Fatal(err)
			}
			plugintest.Golden(t, name+".txt", printed.String())
		})
	}
}

func TestPrintOptions(t *testing.T) {
	built := status.Build(plugintest.AtRest())
	for name, options := range map[string]status.PrintOptions{
		"wide":       {Wide: true, Now: plugintest.Now},
		"no-headers": {NoHeaders: true, Now: plugintest.Now},
	} {
		var printed bytes.Buffer
		if err := status.Print(&printed, built, options); err != nil {
			t.Fatal(err)
		}
		plugintest.Golden(t, name+".txt", printed.String())
	}
}

// If the Nodes cannot be read, no instance counts as an instance without a Node.
func TestUnknownNodesAreNotMissing(t *testing.T) {
	built := status.Build(cases["nodes-forbidden"]())
	if len(built.Unknown) != 1 || built.Unknown[0] != "forbidden to list nodes" {
		t.Errorf("unknown: %q", built.Unknown)
	}
	for _, shard := range built.Pools[0].Shards {
		if shard.ReadyNodes != nil {
			t.Errorf("shard %s has %d ready Nodes", shard.Name, *shard.ReadyNodes)
		}
		for _, instance := range shard.Instances {
			if instance.State != status.StateUnknown || instance.NodeUnknown == "" {
				t.Errorf("instance %s: state %s, Node unknown because %q", instance.Name, instance.State, instance.NodeUnknown)
			}
		}
	}
}

// A rotation is shown while it goes on, and before it if it would not go on.
func TestRotationsInTheStatus(t *testing.T) {
	for name, test := range map[string]struct {
		status metav1.ConditionStatus
		reason string
		want   bool
	}{
		"nothing is outdated": {metav1.ConditionFalse, v1beta1.ReasonNotRollingOut, false},
		"it goes on":          {metav1.ConditionTrue, v1beta1.ReasonRollingOut, true},
		"it waits":            {metav1.ConditionTrue, v1beta1.ReasonOutsideWindow, true},
		"it would not go on":  {metav1.ConditionFalse, v1beta1.ReasonInvalidSchedule, true},
	} {
		s := plugintest.AtRest()
		plugintest.SetCondition(&s.Pools.Items[0].Status.Conditions, v1beta1.ConditionRollingOut, test.status, test.reason, "")
		found := slices.ContainsFunc(status.Build(s).Pools[0].Problems, func(c status.Condition) bool { return c.Type == v1beta1.ConditionRollingOut })
		assert.Equal(t, test.want, found, name)
	}
}
