// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// groupChanged is called when a group in the cache has changed. Pods may wait for the
// group.
func (c *Controller) groupChanged(_, key string) {
	c.enqueueWaiting(controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byGroup, key), controller.BatchPeriod)
}

// shardChanged is called when a shard was added to or removed from the configuration,
// when its cache of groups is complete, and when its connection was opened or lost. Pods
// may wait until the groups of all shards are known.
func (c *Controller) shardChanged(string) { c.enqueueWaiting(c.pods(), controller.BatchPeriod) }

// podChanged enqueues Pods that request a machine. A Pod that was deleted and created
// again may appear as one change.
func (c *Controller) podChanged(before, after *metav1.PartialObjectMetadata) {
	if before != nil && (after == nil || before.UID != after.UID) {
		c.queue.Add(before.UID)
	}
	switch {
	case after == nil:
	case before == nil || before.UID != after.UID || before.ResourceVersion == after.ResourceVersion ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || !maps.Equal(before.Annotations, after.Annotations):
		c.queue.Add(after.UID)
	}
}

func (c *Controller) nstanceMachineChanged(before, after *v1beta1.NstanceMachine) {
	switch {
	case after == nil:
		c.enqueue(before)
		c.enqueueSlot(slotOf(before))
	case before == nil || relevant(before, after) || reasonOf(machineProblem(before)) != reasonOf(machineProblem(after)):
		c.enqueue(after)
	}
}

// reasonOf returns the reason of a rejection, "" when there is none.
func reasonOf(r *rejection) string {
	if r == nil {
		return ""
	}
	return r.reason
}

func (c *Controller) machineChanged(before, after *clusterv1.Machine) {
	switch {
	case after == nil:
		c.enqueue(before)
	case before == nil || relevant(before, after):
		c.enqueue(after)
	}
}

// relevant reports whether a change of one object of a pair is relevant to the other:
// its deletion began, or its owner or a pause was added or removed. Two equal states are
// a resync.
func relevant(before, after metav1.Object) bool {
	return before.GetResourceVersion() == after.GetResourceVersion() || before.GetUID() != after.GetUID() ||
		before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
		(metav1.GetControllerOfNoCopy(before) == nil) != (metav1.GetControllerOfNoCopy(after) == nil) ||
		controllers.PauseChanged(before, after)
}

// clusterChanged enqueues all Pods and pairs when the Cluster was created or deleted,
// paused or unpaused.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	cluster := after
	if after == nil {
		cluster = before
	}
	if cluster.Name != c.clusterName {
		return
	}
	if before != nil && after != nil && controllers.PausedBy(before) == controllers.PausedBy(after) &&
		before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() {
		return
	}
	for _, pod := range c.pods() {
		c.queue.Add(pod.UID)
	}
	for _, object := range c.pairs() {
		c.enqueue(object)
	}
}

// enqueue enqueues the Pod for which an object was created, or whose name it has.
func (c *Controller) enqueue(object metav1.Object) {
	if uid, ok := podOf(object.GetName()); ok {
		c.queue.Add(uid)
	}
}

// enqueueSlot enqueues the Pods of a slot in which a machine may be created now.
func (c *Controller) enqueueSlot(freed slot) {
	pods := controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byGroup, freed.group)
	c.enqueueWaiting(slices.DeleteFunc(pods, func(pod *metav1.PartialObjectMetadata) bool { return pod.Namespace != freed.namespace }), 0)
}

// enqueueWaiting enqueues those of pods that have no machine, after delay.
func (c *Controller) enqueueWaiting(pods []*metav1.PartialObjectMetadata, delay time.Duration) {
	for _, pod := range pods {
		if _, err := c.nstanceMachineLister.Get(machineName(pod.UID)); apierrors.IsNotFound(err) {
			c.queue.AddAfter(pod.UID, delay)
		}
	}
}

// keys returns the UIDs of all Pods that request a machine or have one.
func (c *Controller) keys() []types.UID {
	keys := sets.New[types.UID]()
	for _, pod := range c.pods() {
		keys.Insert(pod.UID)
	}
	for _, object := range c.pairs() {
		if uid, ok := podOf(object.GetName()); ok {
			keys.Insert(uid)
		}
	}
	return keys.UnsortedList()
}

// pods returns all Pods that request a machine.
func (c *Controller) pods() []*metav1.PartialObjectMetadata {
	var pods []*metav1.PartialObjectMetadata
	for _, object := range c.podIndex.List() {
		if pod, ok := object.(*metav1.PartialObjectMetadata); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// pairs returns all Machines and NstanceMachines.
func (c *Controller) pairs() []metav1.Object {
	var pairs []metav1.Object
	for _, indexer := range []cache.Indexer{c.machineIndex, c.nstanceMachineIndex} {
		for _, object := range indexer.List() {
			if accessor, err := meta.Accessor(object); err == nil {
				pairs = append(pairs, accessor)
			}
		}
	}
	return pairs
}
