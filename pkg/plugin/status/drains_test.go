// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/drainrule"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
	"nstance.dev/operator/pkg/plugin/status"
)

// drained returns a pool whose instance a1 is being drained for a scale-down.
func drained() *objects.Snapshot {
	s := plugintest.AtRest()
	plugintest.Drain(s, "a", "a1", "scale-down")
	return s
}

// skip, inOrder and selects are parts of MachineDrainRules.
var skip = clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip}

func inOrder(order int32) clusterv1.MachineDrainRuleDrainConfig {
	return clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorDrain, Order: &order}
}

func selects(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// drainCases are snapshots by the name of their golden file, and the state of the drain of a1.
var drainCases = map[string]struct {
	snapshot func() *objects.Snapshot
	state    status.DrainState
}{
	"budget": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.AddPod(s, "a1", "web-1", nil)
		plugintest.AddBudget(s, "keep-web", "web-0", 0)
		plugintest.AddBudget(s, "allows", "web-1", 1)
		plugintest.AddBlockedDrain(s, "a", v1beta1.BlockedDrain{Instance: "a10", Node: "a10", Reason: v1beta1.ReasonPodNotEvictable,
			Message: "Node a10: Pod web/other cannot be evicted"})
		plugintest.AddBlockedDrain(s, "a", v1beta1.BlockedDrain{
			Instance: "a1", Node: "a1", Pod: &v1beta1.BlockingPod{Namespace: "web", Name: "web-0"}, PodDisruptionBudgets: []string{"keep-web"},
			Reason: v1beta1.ReasonPodNotEvictable, Message: "Node a1: Pod web/web-0 cannot be evicted, PodDisruptionBudget keep-web",
		})
		return s
	}, status.DrainBlocked},
	"two-budgets": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.AddBudget(s, "second", "web-0", 1)
		plugintest.AddBudget(s, "first", "web-0", 1)
		return s
	}, status.DrainBlocked},
	"terminating": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "slow", func(pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.Finalizers = ptr.To(metav1.NewTime(plugintest.Now.Add(20*time.Second))), []string{"example.com/keep"}
		})
		return s
	}, status.DrainRunning},
	"stuck": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "hangs", func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(plugintest.Ago(time.Minute)) })
		return s
	}, status.DrainBlocked},
	"stays": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "daemon", func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "daemon", Controller: ptr.To(true)}}
		})
		plugintest.AddPod(s, "a1", "mirror", func(pod *corev1.Pod) { pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
		plugintest.AddPod(s, "a1", "finished", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
		plugintest.AddPod(s, "a1", "skipped", func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "skip" })
		plugintest.AddVolume(s, "a1", "data")
		plugintest.AddVolume(s, "b1", "other")
		return s
	}, status.DrainDone},
	"may-complete": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "batch", func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "wait-completed" })
		plugintest.AddPod(s, "a1", "report", func(pod *corev1.Pod) { pod.Annotations = map[string]string{drainrule.DoNotDisrupt: "true"} })
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.SetCondition(&plugintest.Group(s, "a").Status.Conditions, v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonDraining,
			"Node a1: waits for Pod web/batch to complete, at the latest until 2026-01-02T03:06:00Z (label cluster.x-k8s.io/drain) and for 1 more; Node a10: waits for another")
		return s
	}, status.DrainRunning},
	"machine-drain-rules": {func() *objects.Snapshot {
		s := drained()
		// The pool has no Machines.
		ofPool, ofOther := selects(clusterv1.MachinePoolNameLabel, plugintest.Pool), selects(clusterv1.MachinePoolNameLabel, "other")
		wait := clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted}
		plugintest.AddDrainRule(s, "last", inOrder(10), "storage", ofPool, nil)
		plugintest.AddDrainRule(s, "other", inOrder(20), "web-0", ofOther, nil)
		plugintest.AddDrainRule(s, "agents", skip, "agent", nil, selects("team", "infra"))
		plugintest.AddDrainRule(s, "batch", wait, "batch", nil, nil)
		s.PodNamespaces = map[string]objects.Read[corev1.Namespace]{
			"web": {Items: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"team": "infra"}}}}},
		}
		for _, name := range []string{"agent", "batch", "storage", "web-0"} {
			plugintest.AddPod(s, "a1", name, nil)
		}
		return s
	}, status.DrainRunning},
	"machine-drain-rules-of-a-machine": {func() *objects.Snapshot {
		s := drained()
		_, machine := plugintest.AddMachines(s, "a", "a1")
		machine.Labels = map[string]string{"tier": "gpu"}
		machine.Spec.ClusterName, machine.Spec.ProviderID = "dev", plugintest.ProviderID("a", "a1")
		s.CAPIClusters.Items = []clusterv1.Cluster{{ObjectMeta: metav1.ObjectMeta{
			Namespace: plugintest.Namespace, Name: "dev", Labels: map[string]string{"env": "test"},
		}}}
		plugintest.AddDrainRule(s, "by-machine", inOrder(1), "batch", selects("tier", "gpu"), nil)
		plugintest.AddDrainRule(s, "by-cluster", inOrder(2), "storage", nil, nil)
		s.DrainRules.Items[1].Spec.Machines[0].ClusterSelector = selects("env", "test")
		// It is in another namespace.
		plugintest.AddDrainRule(s, "foreign", skip, "web-0", nil, nil)
		s.DrainRules.Items[2].Namespace = "other"
		for _, name := range []string{"batch", "storage", "web-0"} {
			plugintest.AddPod(s, "a1", name, nil)
		}
		return s
	}, status.DrainRunning},
	// Without the namespace of the pool it is not known which rules count.
	"machine-drain-rules-groups-forbidden": {func() *objects.Snapshot {
		s := drained()
		s.ShardGroups = objects.Unread[v1beta1.NstanceShardGroup]("forbidden to list nstanceshardgroups")
		plugintest.AddDrainRule(s, "first", inOrder(-1), "web-0", nil, nil)
		plugintest.AddPod(s, "a1", "web-0", nil)
		return s
	}, status.DrainUnknown},
	"machine-drain-rules-forbidden": {func() *objects.Snapshot {
		s := drained()
		s.DrainRules = objects.Unread[clusterv1.MachineDrainRule]("forbidden to list machinedrainrules")
		plugintest.AddPod(s, "a1", "batch", func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "wait-completed" })
		plugintest.AddPod(s, "a1", "web-0", nil)
		return s
	}, status.DrainUnknown},
	"empty": {drained, status.DrainDone},
	"no-reason": {func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "")
		s.Node("a1").Annotations[v1beta1.AnnotationDeleteAt] = "noon"
		return s
	}, status.DrainDone},
	"no-deadline": {func() *objects.Snapshot {
		s := drained()
		delete(s.Node("a1").Annotations, v1beta1.AnnotationDeleteAt)
		return s
	}, status.DrainDone},
	// An error text may have any characters.
	"requests-failing": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.AddBlockedDrain(s, "a", v1beta1.BlockedDrain{Instance: "a1", Node: "a1", Reason: v1beta1.ReasonRequestsFailing,
			Message: "Node a1 cannot be drained: admission denied; Node a2: try later; and 3 more"})
		return s
	}, status.DrainBlocked},
	"not-listed": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.AddBlockedDrain(s, "a", v1beta1.BlockedDrain{Instance: "a2", Node: "a2", Reason: v1beta1.ReasonPodNotEvictable})
		*plugintest.Group(s, "a").Status.BlockedReplicas = 2
		return s
	}, status.DrainRunning},
	"cordoned-by-another-client": {func() *objects.Snapshot {
		s := plugintest.AtRest()
		machine, _ := plugintest.AddMachines(s, "a", "a1")
		plugintest.SetCondition(&machine.Status.Conditions, v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonDraining, "")
		s.Pods = map[string]objects.Read[corev1.Pod]{"a1": {}}
		return s
	}, status.DrainDone},
	"cluster-api": {func() *objects.Snapshot {
		s := plugintest.AtRest()
		_, machine := plugintest.AddMachines(s, "a", "a1")
		machine.DeletionTimestamp = ptr.To(plugintest.Ago(4 * time.Minute))
		machine.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](600)
		machine.Status.Deletion = &clusterv1.MachineDeletionStatus{NodeDrainStartTime: plugintest.Ago(3 * time.Minute)}
		plugintest.SetCondition(&machine.Status.Conditions, clusterv1.MachineDeletingCondition, metav1.ConditionTrue,
			clusterv1.MachineDeletingDrainingNodeReason, "Drain not completed yet:\n* Pod web/web-0: cannot evict")
		s.Pods = map[string]objects.Read[corev1.Pod]{"a1": {}}
		s.Budgets = map[string]objects.Read[policyv1.PodDisruptionBudget]{"web": {}}
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.AddPod(s, "a1", "skipped", func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "skip" })
		return s
	}, status.DrainRunning},
	"unreported": {func() *objects.Snapshot {
		s := drained()
		group := plugintest.Group(s, "a")
		group.Status.ProviderIDs = group.Status.ProviderIDs[1:]
		return s
	}, status.DrainUnreported},
	"groups-forbidden": {func() *objects.Snapshot {
		s := drained()
		s.ShardGroups = objects.Unread[v1beta1.NstanceShardGroup]("forbidden to list nstanceshardgroups")
		return s
	}, status.DrainDone},
	"forbidden": {func() *objects.Snapshot {
		s := drained()
		s.Pods["a1"] = objects.Unread[corev1.Pod]("forbidden to list pods")
		s.Attachments = objects.Unread[storagev1.VolumeAttachment]("forbidden to list volumeattachments")
		return s
	}, status.DrainUnknown},
	"budgets-forbidden": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		s.Budgets["web"] = objects.Unread[policyv1.PodDisruptionBudget]("forbidden to list poddisruptionbudgets")
		return s
	}, status.DrainUnknown},
}

func TestBuildAndPrintDrains(t *testing.T) {
	for name, test := range drainCases {
		t.Run(name, func(t *testing.T) {
			built := status.BuildDrains(test.snapshot())
			if len(built.Drains) != 1 || built.Drains[0].Node != "a1" || built.Drains[0].State != test.state {
				t.Errorf("drains %+v, want one of a1 in state %s", built.Drains, test.state)
			}
			plugintest.Golden(t, "drains/"+name+".yaml", plugintest.YAML(t, built))
			var printed bytes.Buffer
			if err := status.PrintDrains(&printed, built, status.PrintOptions{Now: plugintest.Now}); err != nil {
				t.Fatal(err)
			}
			plugintest.Golden(t, "drains/"+name+".txt", printed.String())
		})
	}
}

func TestNoDrains(t *testing.T) {
	var printed bytes.Buffer
	if err := status.PrintDrains(&printed, status.BuildDrains(plugintest.AtRest()), status.PrintOptions{Now: plugintest.Now}); err != nil {
		t.Fatal(err)
	}
	if got, want := printed.String(), "No drains in progress.\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// Without the Nodes it is not known whether there are drains.
func TestUnknownNodesHaveUnknownDrains(t *testing.T) {
	s := plugintest.AtRest()
	s.Nodes = objects.Unread[corev1.Node]("forbidden to list nodes")
	var printed bytes.Buffer
	if err := status.PrintDrains(&printed, status.BuildDrains(s), status.PrintOptions{Now: plugintest.Now}); err != nil {
		t.Fatal(err)
	}
	if got, want := printed.String(), "\nUNKNOWN\nunknown: forbidden to list nodes\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// The Pods of these Nodes are read.
func TestDrainedNodes(t *testing.T) {
	s := drained()
	plugintest.Drain(s, "c", "c1", "expired")
	if got, want := status.DrainedNodes(s), []string{"a1", "c1"}; !slices.Equal(got, want) {
		t.Errorf("Nodes %q, want %q", got, want)
	}
}
