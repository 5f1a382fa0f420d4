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
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// GroupChanged is to be called when the cache of a shard's groups has changed.
// Pods may wait for a group to appear.
func (c *Controller) GroupChanged(_, key string) {
	c.wakeWaiting(controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byGroup, key), controller.BatchPeriod)
}

// ShardChanged is to be called when a shard was configured or removed, became
// synced, or when its connection came or went. Pods may wait until all shards are
// known.
func (c *Controller) ShardChanged(string) { c.wakeWaiting(c.pods(), controller.BatchPeriod) }

// podChanged sees every change of a Pod that asks. One that was deleted and made
// anew may appear as one change.
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
		c.wake(before)
		c.wakeSlot(slotOf(before))
	case before == nil || turned(before, after):
		c.wake(after)
	}
}

func (c *Controller) machineChanged(before, after *clusterv1.Machine) {
	switch {
	case after == nil:
		c.wake(before)
	case before == nil || turned(before, after):
		c.wake(after)
	}
}

// turned tells whether a change of one object of a pair means anything for the
// other: its deletion was asked for, its owner or a pause came or went. Two equal
// states are a resync.
func turned(before, after metav1.Object) bool {
	return before.GetResourceVersion() == after.GetResourceVersion() || before.GetUID() != after.GetUID() ||
		before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
		(metav1.GetControllerOfNoCopy(before) == nil) != (metav1.GetControllerOfNoCopy(after) == nil) ||
		controller.PauseChanged(before, after)
}

// clusterChanged wakes everything when the Cluster appears, goes, is paused or
// goes on.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	cluster := after
	if after == nil {
		cluster = before
	}
	if cluster.Name != c.clusterName {
		return
	}
	if before != nil && after != nil && controller.PausedBy(before) == controller.PausedBy(after) &&
		before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() {
		return
	}
	for _, pod := range c.pods() {
		c.queue.Add(pod.UID)
	}
	for _, pair := range c.pairs() {
		c.wake(pair)
	}
}

// wake asks for a sync of the Pod that an object was made for, or whose machine
// it keeps from being made.
func (c *Controller) wake(object metav1.Object) {
	if uid, ok := podOf(object.GetName()); ok {
		c.queue.Add(uid)
	}
}

// wakeSlot wakes the Pods that may take a place that has become free.
func (c *Controller) wakeSlot(freed slot) {
	pods := controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byGroup, freed.group)
	c.wakeWaiting(slices.DeleteFunc(pods, func(pod *metav1.PartialObjectMetadata) bool { return pod.Namespace != freed.namespace }), 0)
}

// wakeWaiting wakes those of pods that have no machine, after some time.
func (c *Controller) wakeWaiting(pods []*metav1.PartialObjectMetadata, delay time.Duration) {
	for _, pod := range pods {
		if _, err := c.nstanceMachineLister.Get(machineName(pod.UID)); apierrors.IsNotFound(err) {
			c.queue.AddAfter(pod.UID, delay)
		}
	}
}

// pods are all that ask.
func (c *Controller) pods() []*metav1.PartialObjectMetadata {
	var pods []*metav1.PartialObjectMetadata
	for _, object := range c.podIndex.List() {
		if pod, ok := object.(*metav1.PartialObjectMetadata); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// pairs are all Machines and NstanceMachines.
func (c *Controller) pairs() []metav1.Object {
	var pairs []metav1.Object
	for _, indexer := range []cache.Indexer{c.machineIndex, c.nstanceMachineIndex} {
		for _, object := range indexer.List() {
			if made, err := meta.Accessor(object); err == nil {
				pairs = append(pairs, made)
			}
		}
	}
	return pairs
}
