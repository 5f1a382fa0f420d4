// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
	"nstance.dev/operator/pkg/plugin/printing"
)

// drained returns a pool whose instance a1 is being drained for a scale-down.
func drained() *objects.Snapshot {
	s := plugintest.AtRest()
	plugintest.Drain(s, "a", "a1", "scale-down")
	return s
}

// cases are snapshots by the name of their golden file, and the state of the drain of a1.
var cases = map[string]struct {
	snapshot func() *objects.Snapshot
	state    drains.State
}{
	"budget": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.AddPod(s, "a1", "web-1", nil)
		plugintest.AddBudget(s, "keep-web", "web-0", 0)
		plugintest.AddBudget(s, "allows", "web-1", 1)
		plugintest.SetCondition(&plugintest.Group(s, "a").Status.Conditions, v1beta1.ConditionDrainsProgressing, metav1.ConditionFalse,
			v1beta1.ReasonDrainBlocked, "Node a1: Pod web/web-0 cannot be evicted, PodDisruptionBudget keep-web; Node a10: Pod web/other cannot be evicted")
		return s
	}, drains.Blocked},
	"two-budgets": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.AddBudget(s, "second", "web-0", 1)
		plugintest.AddBudget(s, "first", "web-0", 1)
		return s
	}, drains.Blocked},
	"terminating": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "slow", func(pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.Finalizers = ptr.To(metav1.NewTime(plugintest.Now.Add(20*time.Second))), []string{"example.com/keep"}
		})
		return s
	}, drains.Draining},
	"stuck": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "hangs", func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(plugintest.Ago(time.Minute)) })
		return s
	}, drains.Blocked},
	"stays": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "daemon", func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "daemon", Controller: ptr.To(true)}}
		})
		plugintest.AddPod(s, "a1", "mirror", func(pod *corev1.Pod) { pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
		plugintest.AddPod(s, "a1", "finished", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
		// Only a drain by Cluster API honors this label.
		plugintest.AddPod(s, "a1", "skipped-by-cluster-api", func(pod *corev1.Pod) { pod.Labels[clusterv1.PodDrainLabel] = "skip" })
		plugintest.AddVolume(s, "a1", "data")
		plugintest.AddVolume(s, "b1", "other")
		return s
	}, drains.Draining},
	"empty": {drained, drains.Drained},
	"event-expired": {func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Drain(s, "a", "a1", "")
		return s
	}, drains.Drained},
	"many-blocked": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		plugintest.AddEvent(s, "a1", v1beta1.ReasonDrainBlocked, "Node a1: Pod web/web-0 cannot be evicted: a webhook denied the request")
		plugintest.SetCondition(&plugintest.Group(s, "a").Status.Conditions, v1beta1.ConditionDrainsProgressing, metav1.ConditionFalse,
			v1beta1.ReasonDrainBlocked, "Node x: a; Node y: b; Node z: c; and 1 more")
		return s
	}, drains.Blocked},
	"cordoned-by-another-client": {func() *objects.Snapshot {
		s := plugintest.AtRest()
		machine, _ := plugintest.AddMachines(s, "a", "a1")
		plugintest.SetCondition(&machine.Status.Conditions, v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonDraining, "")
		s.Pods = map[string]objects.Read[corev1.Pod]{"a1": {}}
		return s
	}, drains.Drained},
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
	}, drains.Draining},
	"unreported": {func() *objects.Snapshot {
		s := drained()
		group := plugintest.Group(s, "a")
		group.Status.ProviderIDs = group.Status.ProviderIDs[1:]
		return s
	}, drains.Unreported},
	"groups-forbidden": {func() *objects.Snapshot {
		s := drained()
		s.ShardGroups = objects.Unread[v1beta1.NstanceShardGroup]("forbidden to list nstanceshardgroups")
		return s
	}, drains.Drained},
	"forbidden": {func() *objects.Snapshot {
		s := drained()
		s.Pods["a1"] = objects.Unread[corev1.Pod]("forbidden to list pods")
		s.Attachments = objects.Unread[storagev1.VolumeAttachment]("forbidden to list volumeattachments")
		s.NodeEvents = objects.Unread[eventsv1.Event]("forbidden to list events")
		return s
	}, drains.Unknown},
	"budgets-forbidden": {func() *objects.Snapshot {
		s := drained()
		plugintest.AddPod(s, "a1", "web-0", nil)
		s.Budgets["web"] = objects.Unread[policyv1.PodDisruptionBudget]("forbidden to list poddisruptionbudgets")
		return s
	}, drains.Unknown},
}

func TestBuildAndPrint(t *testing.T) {
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			built := drains.Build(test.snapshot())
			if len(built.Drains) != 1 || built.Drains[0].Node != "a1" || built.Drains[0].State != test.state {
				t.Errorf("drains %+v, want one of a1 in state %s", built.Drains, test.state)
			}
			plugintest.Golden(t, name+".yaml", plugintest.YAML(t, built))
			var printed bytes.Buffer
			if err := drains.Print(&printed, built, printing.Options{Now: plugintest.Now}); err != nil {
				t.Fatal(err)
			}
			plugintest.Golden(t, name+".txt", printed.String())
		})
	}
}

func TestNoDrains(t *testing.T) {
	var printed bytes.Buffer
	if err := drains.Print(&printed, drains.Build(plugintest.AtRest()), printing.Options{Now: plugintest.Now}); err != nil {
		t.Fatal(err)
	}
	if got, want := printed.String(), "No drains in progress.\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// That no drain was found means nothing if the Nodes are not known.
func TestUnknownNodesHaveUnknownDrains(t *testing.T) {
	s := plugintest.AtRest()
	s.Nodes = objects.Unread[corev1.Node]("forbidden to list nodes")
	var printed bytes.Buffer
	if err := drains.Print(&printed, drains.Build(s), printing.Options{Now: plugintest.Now}); err != nil {
		t.Fatal(err)
	}
	if got, want := printed.String(), "\nUNKNOWN\nunknown: forbidden to list nodes\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// The Pods of these Nodes are read.
func TestNodesAreThoseOfTheDrains(t *testing.T) {
	s := drained()
	plugintest.Drain(s, "c", "c1", "expired")
	if got, want := drains.Nodes(s), []string{"a1", "c1"}; !slices.Equal(got, want) {
		t.Errorf("Nodes %q, want %q", got, want)
	}
}
