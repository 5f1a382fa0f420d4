// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// clusterChanged enqueues the cluster when the Cluster was created or deleted, and
// when it was paused or unpaused.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before == nil || after == nil || controllers.PausedBy(before) != controllers.PausedBy(after) {
		c.enqueue()
	}
}

func (c *Controller) enqueue() { c.queue.Add(c.key()) }

// key is the key of the NstanceCluster, the only one in the queue.
func (c *Controller) key() cache.ObjectName { return cache.NewObjectName(c.namespace, c.name) }

// secretKey is the key of the kubeconfig Secret.
func (c *Controller) secretKey() cache.ObjectName {
	return cache.NewObjectName(c.namespace, SecretName(c.name))
}
