// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why_test

import (
	"bytes"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
	"nstance.dev/operator/pkg/plugin/status"
	"nstance.dev/operator/pkg/plugin/why"
)

const onDemand = "on-demand-pod-uid"

// cases are snapshots by the name of their golden file.
var cases = map[string]struct {
	subject  string
	verdict  why.Verdict
	snapshot func() *objects.Snapshot
}{
	"kept": {"a1", why.Kept, plugintest.AtRest},
	"scale-down": {"a1", why.Drained, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "scale-down")
		*s.MachinePools.Items[0].Spec.Replicas = 3
		group := plugintest.Group(s, "a")
		group.Spec.Size, group.Spec.RemoveFirst = 1, []string{"a1"}
		s.PoolEvents.Items = []eventsv1.Event{{Reason: "Scaled", Note: "from 4 to 3 instances", EventTime: metav1.NewMicroTime(plugintest.Now.Add(-2 * time.Minute))}}
		return s
	}},
	"scaled-without-a-writer": {"a1", why.Drained, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "scale-down")
		s.MachinePools.Items[0].ManagedFields = nil
		s.PoolEvents.Items = []eventsv1.Event{{Reason: "Scaled", Note: "from 4 to 3 instances", EventTime: metav1.NewMicroTime(plugintest.Now.Add(-2 * time.Minute))}}
		return s
	}},
	"candidate": {"a1", why.Kept, func() *objects.Snapshot {
		s := plugintest.AtRest()
		_, machine := plugintest.AddMachines(s, "a", "a1")
		machine.Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: ""}
		machine.ManagedFields = []metav1.ManagedFieldsEntry{plugintest.Wrote("cluster-autoscaler", time.Minute,
			`{"f:metadata":{"f:annotations":{"f:cluster.x-k8s.io/delete-machine":{}}}}`)}
		return s
	}},
	"config-drift": {"a1", why.Drained, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "config-drift")
		s.Pools.Items[0].Spec.InstanceType = "large"
		s.Pools.Items[0].ManagedFields = []metav1.ManagedFieldsEntry{plugintest.Wrote("kubectl-patch", 3*time.Minute, `{"f:spec":{"f:instanceType":{}}}`)}
		return s
	}},
	"server-configuration": {"a1", why.Drained, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "config-drift")
		return s
	}},
	"expired": {"a1", why.Drained, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "expired")
		return s
	}},
	"spot": {"a1", why.Drained, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "spot")
		return s
	}},
	"timed-out": {"a1", why.Drained, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "unhealthy")
		plugintest.AddEvent(s, "a1", "DrainTimedOut", "the drain was not finished in time")
		return s
	}},
	"reason-unknown": {"a1", why.Drained, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "")
		return s
	}},
	"machine-deleted": {"a1", why.Deleted, func() *objects.Snapshot {
		s := plugintest.AtRest()
		_, machine := plugintest.AddMachines(s, "a", "a1")
		machine.DeletionTimestamp = ptr.To(plugintest.Ago(time.Minute))
		machine.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](3600)
		plugintest.SetCondition(&machine.Status.Conditions, clusterv1.MachineHealthCheckSucceededCondition, metav1.ConditionFalse,
			"UnhealthyNode", "Condition Ready on Node is reporting status Unknown for more than 5m")
		return s
	}},
	"guards-and-policy": {"a1", why.Kept, func() *objects.Snapshot {
		s := plugintest.AtRest()
		pool := &s.Pools.Items[0]
		pool.Spec.DeletionPolicy = v1beta1.DeletionRetain
		pool.Spec.ScaleDown = &v1beta1.ScaleDownGuards{PauseWhile: []v1beta1.PoolState{v1beta1.PauseWhileDrainBlocked}}
		pool.Spec.Shards = pool.Spec.Shards[1:]
		pool.DeletionTimestamp = ptr.To(plugintest.Ago(time.Minute))
		plugintest.SetCondition(&pool.Status.Conditions, v1beta1.ConditionScalingDown, metav1.ConditionTrue, v1beta1.ReasonDrainBlocked,
			"1 more instances are to be removed: 1 drains are blocked, for the reasons that the shard groups have")
		plugintest.SetCondition(&pool.Status.Conditions, v1beta1.ConditionCapacityAvailable, metav1.ConditionFalse, v1beta1.ReasonMoved, "1 of 1 instances are lent")
		plugintest.SetCondition(&pool.Status.Conditions, v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, "the Cluster is paused")
		group := plugintest.Group(s, "a")
		group.Spec.Loan = plugintest.Borrowed()
		plugintest.SetCondition(&group.Status.Conditions, v1beta1.ConditionShardReachable, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "connection refused")
		return s
	}},
	"on-demand": {onDemand, why.Created, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.AddOnDemand(s)
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "build", UID: "pod-uid"}}
		s.Requesting = map[types.NamespacedName]objects.Read[corev1.Pod]{{Namespace: "web", Name: "build"}: {Items: []corev1.Pod{pod}}}
		return s
	}},
	"on-demand-pod-deleted": {onDemand, why.Created, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.AddOnDemand(s)
		s.Requesting = map[types.NamespacedName]objects.Read[corev1.Pod]{{Namespace: "web", Name: "build"}: {}}
		return s
	}},
	"on-demand-pod-forbidden": {onDemand, why.Created, func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.AddOnDemand(s)
		s.Requesting = map[types.NamespacedName]objects.Read[corev1.Pod]{{Namespace: "web", Name: "build"}: objects.Unread[corev1.Pod]("forbidden to get pods")}
		return s
	}},
	"node-deleted": {"a1", why.Kept, func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.Nodes.Items = s.Nodes.Items[1:]
		return s
	}},
	"by-provider-id": {plugintest.ProviderID("a", "a1"), why.Kept, func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.Nodes.Items = s.Nodes.Items[1:]
		plugintest.AddMachines(s, "a", "a1")
		return s
	}},
	"unmanaged": {"other", why.Unmanaged, func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.Nodes.Items = append(s.Nodes.Items, plugintest.NewNode("z", "other"))
		return s
	}},
	"forbidden": {"a1", why.Unknown, func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.ShardGroups = objects.Unread[v1beta1.NstanceShardGroup]("forbidden to list nstanceshardgroups")
		return s
	}},
	"machinepools-forbidden": {"a1", why.Kept, func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.MachinePools = objects.Unread[clusterv1.MachinePool]("forbidden to list machinepools")
		return s
	}},
}

func TestExplainAndPrint(t *testing.T) {
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			explained := why.Explain(test.snapshot(), test.subject)
			if explained.Verdict != test.verdict {
				t.Errorf("verdict %s, want %s", explained.Verdict, test.verdict)
			}
			plugintest.Golden(t, name+".yaml", plugintest.YAML(t, explained))
			var printed bytes.Buffer
			if err := why.Print(&printed, explained, status.PrintOptions{Now: plugintest.Now}); err != nil {
				t.Fatal(err)
			}
			plugintest.Golden(t, name+".txt", printed.String())
		})
	}
}
