// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

func TestWhichPodsAChangeEnqueues(t *testing.T) {
	served, waiting, other := newPod("served", "gpu"), newPod("waiting", "gpu"), newPod("other", "cpu")
	elsewhere := newPod("elsewhere", "gpu")
	elsewhere.Namespace = "other"
	recreated := inCache(served)
	recreated.UID = "pod-recreated"
	changed := func(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
		pod = pod.DeepCopy()
		pod.ResourceVersion += "1"
		change(pod)
		return pod
	}
	all := []string{"pod-elsewhere at 0s", "pod-other at 0s", "pod-served at 0s", "pod-waiting at 0s"}
	newer := newMachine(served)
	newer.ResourceVersion = "2"
	newerNstance := newNstanceMachine(served)
	newerNstance.ResourceVersion = "2"
	foreignName := newMachine(served)
	foreignName.Name = "other"

	h := newHarness(t, 0, newShards("gpu"), served, waiting, other, elsewhere)
	h.store("machines", newMachine(served))
	h.store("nstancemachines", newNstanceMachine(served))
	h.show()

	tests := map[string]struct {
		change func(*Controller)
		want   []string
	}{
		"a group changes":           {func(*Controller) { h.Fake.NotifyGroup("a", "gpu") }, []string{"pod-elsewhere at 1s", "pod-waiting at 1s"}},
		"a group that no Pod names": {func(*Controller) { h.Fake.NotifyGroup("a", "tpu") }, nil},
		"a shard changes":           {func(*Controller) { h.Fake.NotifyShard("a") }, []string{"pod-elsewhere at 1s", "pod-other at 1s", "pod-waiting at 1s"}},

		"a Pod appears":    {func(c *Controller) { c.podChanged(nil, inCache(waiting)) }, []string{"pod-waiting at 0s"}},
		"a Pod is removed": {func(c *Controller) { c.podChanged(inCache(waiting), nil) }, []string{"pod-waiting at 0s"}},
		"a Pod is being deleted": {func(c *Controller) {
			c.podChanged(inCache(waiting), inCache(changed(waiting, func(p *corev1.Pod) { controllertest.Deleting(p) })))
		}, []string{"pod-waiting at 0s"}},
		"a Pod names another group": {func(c *Controller) {
			c.podChanged(inCache(waiting), inCache(changed(newPod("waiting", "cpu"), func(*corev1.Pod) {})))
		}, []string{"pod-waiting at 0s"}},
		"a Pod's status": {func(c *Controller) {
			c.podChanged(inCache(waiting), inCache(changed(waiting, func(*corev1.Pod) {})))
		}, nil},
		"a resync of Pods": {func(c *Controller) { c.podChanged(inCache(waiting), inCache(waiting)) }, []string{"pod-waiting at 0s"}},
		"a Pod was created again, seen as one change": {func(c *Controller) { c.podChanged(inCache(served), recreated) }, []string{"pod-recreated at 0s", "pod-served at 0s"}},

		"a Machine appears":           {func(c *Controller) { c.machineChanged(nil, newMachine(served)) }, []string{"pod-served at 0s"}},
		"a Machine is removed":        {func(c *Controller) { c.machineChanged(newMachine(served), nil) }, []string{"pod-served at 0s"}},
		"a Machine is being deleted":  {func(c *Controller) { c.machineChanged(newMachine(served), controllertest.Deleting(newer.DeepCopy())) }, []string{"pod-served at 0s"}},
		"a Machine is paused":         {func(c *Controller) { c.machineChanged(newMachine(served), controllertest.Paused(newer.DeepCopy())) }, []string{"pod-served at 0s"}},
		"a resync of Machines":        {func(c *Controller) { c.machineChanged(newMachine(served), newMachine(served)) }, []string{"pod-served at 0s"}},
		"a Machine's status":          {func(c *Controller) { c.machineChanged(newMachine(served), newer) }, nil},
		"a Machine with another name": {func(c *Controller) { c.machineChanged(nil, foreignName) }, nil},

		"an NstanceMachine appears":                                {func(c *Controller) { c.nstanceMachineChanged(nil, newNstanceMachine(served)) }, []string{"pod-served at 0s"}},
		"an NstanceMachine is removed, and another may be created": {func(c *Controller) { c.nstanceMachineChanged(newNstanceMachine(served), nil) }, []string{"pod-served at 0s", "pod-waiting at 0s"}},
		"an NstanceMachine loses its owner": {func(c *Controller) {
			c.nstanceMachineChanged(owned(newNstanceMachine(served)), newerNstance)
		}, []string{"pod-served at 0s"}},
		"an NstanceMachine's status": {func(c *Controller) { c.nstanceMachineChanged(newNstanceMachine(served), newerNstance) }, nil},

		"the Cluster appears": {func(c *Controller) { c.clusterChanged(nil, controllertest.NewCluster()) }, all},
		"the Cluster is unpaused": {func(c *Controller) {
			c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), controllertest.NewCluster())
		}, all},
		"the Cluster's status": {func(c *Controller) { c.clusterChanged(controllertest.NewCluster(), controllertest.NewCluster()) }, nil},
		"another Cluster appears": {func(c *Controller) {
			c.clusterChanged(nil, &clusterv1.Cluster{})
		}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			keys := controllertest.Enqueued(t, &h.controller.queue, func() { test.change(h.controller) })
			if !slices.Equal(keys, test.want) {
				t.Errorf("enqueued %q, want %q", keys, test.want)
			}
		})
	}
}

// A new leader starts with the machines of Pods that were deleted before it, too.
func TestALeaderStartsWithAllPodsAndMachines(t *testing.T) {
	waiting, served, deleted, half := newPod("waiting", "gpu"), newPod("served", "gpu"), newPod("deleted", "gpu"), newPod("half", "gpu")
	h := newHarness(t, 0, newShards("gpu"), waiting, served)
	h.store("machines", newMachine(served))
	h.store("nstancemachines", newNstanceMachine(served))
	h.store("machines", newMachine(deleted))
	h.store("nstancemachines", newNstanceMachine(half))
	foreign := newMachine(half)
	foreign.Name = "another"
	h.store("machines", foreign)
	h.show()
	assert.ElementsMatch(t, []types.UID{waiting.UID, served.UID, deleted.UID, half.UID}, h.controller.keys())
}
