// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
)

// clusterChanged enqueues a cluster whose spec changed. Its status is written by this
// controller, and changes nothing.
func (c *Controller) clusterChanged(before, after *v1alpha1.MarekvsCluster) {
	switch {
	case after == nil:
		c.queue.Add(cache.MetaObjectToName(before))
	case before == nil, before.UID != after.UID, before.Generation != after.Generation,
		before.ResourceVersion == after.ResourceVersion: // a resync
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// onChild enqueues the cluster that controls an object.
func onChild[T any](c *Controller) cache.ResourceEventHandler {
	return controller.OnChange(func(before, after *T) {
		for _, state := range []*T{before, after} {
			object, ok := any(state).(metav1.Object)
			if state == nil || !ok {
				continue
			}
			if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == v1alpha1.ClusterKind {
				c.queue.AddAfter(cache.NewObjectName(object.GetNamespace(), owner.Name), controller.StaleRetry)
			}
		}
	})
}

// onPart enqueues the cluster that a Pod or a claim has the labels of. Many may change at
// the same time.
func onPart[T any](c *Controller) cache.ResourceEventHandler {
	return controller.OnChange(func(before, after *T) {
		state := after
		if state == nil {
			state = before
		}
		if object, ok := any(state).(metav1.Object); ok {
			c.queue.AddAfter(clusterKey(object), controller.BatchPeriod)
		}
	})
}
