// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// maxUnlistedErrors is how many errors of unlisted instances are kept for a shard group.
const maxUnlistedErrors = 16

// providerErrors are the errors of the shard's provider about one group. Servers report
// when a request fails and not when a later one succeeds, so the last one counts until the
// group has its size.
type providerErrors struct {
	// last is the last error of the group or of an instance that its shard lists.
	last string
	// unlisted are the last errors of other instances, one for each. Most are on-demand
	// instances, whose errors the machine controller reports. Others were created just now,
	// and the list that has them arrives after their error.
	unlisted []shard.ErrorEvent
}

// addUnlisted adds the error of an instance.
func (e *providerErrors) addUnlisted(event shard.ErrorEvent) {
	e.unlisted = slices.DeleteFunc(e.unlisted, func(other shard.ErrorEvent) bool {
		return other.InstanceID == event.InstanceID
	})
	e.unlisted = append(e.unlisted, event)
	if surplus := len(e.unlisted) - maxUnlistedErrors; surplus > 0 {
		e.unlisted = slices.Delete(e.unlisted, 0, surplus)
	}
}

// takeListed moves the errors of the group's instances to last, and returns them. A server
// that lists no instances reports errors of its own groups alone, as far as is known.
func (e *providerErrors) takeListed(group *shard.Group) (taken []string) {
	if group == nil {
		return nil
	}
	e.unlisted = slices.DeleteFunc(e.unlisted, func(event shard.ErrorEvent) bool {
		listed := !group.ListsInstances ||
			slices.ContainsFunc(group.Instances, func(i shard.Instance) bool { return i.ID == event.InstanceID })
		if listed {
			e.last = event.Message
			taken = append(taken, event.Message)
		}
		return listed
	})
	return taken
}

// errorReported stores an error of the shard's provider. One about the group is recorded
// as an event at once, one about an instance when the shard lists it. Groups without a
// shard group are ignored.
func (c *Controller) errorReported(shardID string, event shard.ErrorEvent) {
	if event.Group == "" {
		return
	}
	name := c.key(v1beta1.ShardGroupName(event.Group, shardID))
	object, err := c.lister.Get(name.Name)
	if err != nil {
		return
	}
	c.mu.Lock()
	errors := c.failures[name]
	if event.InstanceID == "" {
		errors.last = event.Message
	} else {
		errors.addUnlisted(event)
	}
	c.failures[name] = errors
	c.mu.Unlock()
	if event.InstanceID == "" {
		c.warnOfProvider(object, event.Message)
	}
	c.queue.AddAfter(name, controller.BatchPeriod)
}

// reviewFailure returns the provider's last error, "" when there is none or when the
// group matches the spec again.
func (c *Controller) reviewFailure(key cache.ObjectName, object *v1beta1.NstanceShardGroup, observed observation) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	errors, found := c.failures[key]
	if !found {
		return ""
	}
	for _, message := range errors.takeListed(observed.group) {
		c.warnOfProvider(object, message)
	}
	if observed.group != nil && inOrder(&object.Spec, observed.group) && observed.group.ActualSize == object.Spec.Size {
		errors.last = ""
	}
	c.failures[key] = errors
	if errors.last == "" && len(errors.unlisted) == 0 {
		delete(c.failures, key)
	}
	return errors.last
}

func (c *Controller) warnOfProvider(object *v1beta1.NstanceShardGroup, message string) {
	controller.Warn(c.recorder, object, v1beta1.ReasonProviderError, "Provide", message)
}
