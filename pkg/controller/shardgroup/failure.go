// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// ShardFailed is to be called when a shard reports that its provider could not
// do something for a group. What it says is an event, and stands in the
// condition Ready until the group has its size: servers report what fails, and
// not when it no longer does. A group that Kubernetes does not know is left out.
func (c *Controller) ShardFailed(shard, key, message string) {
	name := c.key(v1beta1.ShardGroupName(key, shard))
	object, err := c.lister.Get(name.Name)
	if err != nil {
		return
	}
	controller.Warn(c.recorder, object, v1beta1.ReasonProviderError, "Provide", message)
	c.mu.Lock()
	c.failures[name] = message
	c.mu.Unlock()
	c.queue.AddAfter(name, controller.BatchPeriod)
}

// reviewFailure returns the failure that still counts, "" for none. One is
// forgotten when the group is as the spec asks.
func (c *Controller) reviewFailure(name cache.ObjectName, object *v1beta1.NstanceShardGroup, seen observation) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seen.group != nil && inOrder(&object.Spec, seen.group) && seen.group.ActualSize == object.Spec.Size {
		delete(c.failures, name)
	}
	return c.failures[name]
}
