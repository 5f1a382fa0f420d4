// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// rejection is a request that a shard has rejected. It is not sent again before until, unless
// the object or the server's group changes.
type rejection struct {
	revision shard.Revision
	// replaces is the value of the annotation AnnotationConfirmOverwrite.
	replaces string
	etag     string
	reported shard.Revision
	// stale: the server has a newer revision. It does not reject the configuration.
	stale bool
	// unclear is the error of a call that the server has either rejected, or whose connection
	// broke; nil if it was certainly rejected.
	unclear error
	until   time.Time
	message string
}

// newRejection returns the rejection of a request for object. err is the server's error.
func newRejection(object *v1beta1.NstanceShardGroup, group *shard.Group, err error, now time.Time) *rejection {
	return &rejection{
		revision: revisionOf(object),
		replaces: object.Annotations[v1beta1.AnnotationConfirmOverwrite],
		etag:     etag(group),
		reported: reportedRevision(group),
		stale:    shard.IsStale(err),
		until:    now.Add(rejectedRetry),
		message:  shard.Message(err),
	}
}

// newUnclear returns the rejection for an error for which shard.IsUnclear is true: a rejection
// if the previous reply to the same request had the same text, and otherwise only a delay.
func (c *Controller) newUnclear(key cache.ObjectName, object *v1beta1.NstanceShardGroup, group *shard.Group, err error) *rejection {
	now := c.clock.Now()
	next := newRejection(object, group, err, now)
	c.mu.Lock()
	defer c.mu.Unlock()
	before, found := c.unclear[key]
	if found && before.message == next.message && before.revision == next.revision {
		return next
	}
	next.unclear, next.until = err, now.Add(unclearRetry)
	c.unclear[key] = *next
	return next
}

// clearUnclear drops the last unclear reply after a clear reply.
func (c *Controller) clearUnclear(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unclear, key)
}

// stillApplies reports whether the same request would be sent again now.
func (r *rejection) stillApplies(object *v1beta1.NstanceShardGroup, group *shard.Group, now time.Time) bool {
	return r != nil && r.revision == revisionOf(object) && r.replaces == object.Annotations[v1beta1.AnnotationConfirmOverwrite] &&
		r.etag == etag(group) && r.reported == reportedRevision(group) && now.Before(r.until)
}

func etag(group *shard.Group) string {
	if group == nil {
		return ""
	}
	return group.ETag
}

// reviewRejection drops a rejection that no longer applies, for example because the server now
// has the rejected settings.
func (c *Controller) reviewRejection(key cache.ObjectName, object *v1beta1.NstanceShardGroup, observed observation, now time.Time) {
	if !observed.synced {
		return
	}
	if !c.rejection(key).stillApplies(object, observed.group, now) ||
		observed.group != nil && inOrder(&object.Spec, observed.group) && recorded(object, observed.group) {
		c.setRejection(key, nil)
	}
}

// rejection returns the rejection of a shard group, nil without a rejection.
func (c *Controller) rejection(key cache.ObjectName) *rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rejected, ok := c.rejections[key]; ok {
		return &rejected
	}
	return nil
}

func (c *Controller) setRejection(key cache.ObjectName, rejected *rejection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rejected == nil {
		delete(c.rejections, key)
		return
	}
	c.rejections[key] = *rejected
}

// forget drops the state of a deleted shard group.
func (c *Controller) forget(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rejections, key)
	delete(c.unclear, key)
	delete(c.failures, key)
	delete(c.deletions, key)
	delete(c.unlisted, key)
	delete(c.accepted, key)
	delete(c.sent, key)
}

// maxUnlistedErrors limits the errors of unlisted instances that are kept for a shard group.
const maxUnlistedErrors = 16

// providerErrors are the errors of the shard's provider about one group. Servers report a
// failed request but not the success of a later request, so the last error counts until the
// group has its size.
type providerErrors struct {
	// last is the last error of the group or of an instance that its shard lists.
	last string
	// unlisted are the last errors of other instances, one for each instance. Most are
	// on-demand instances, whose errors the controller of NstanceMachines reports. Others were
	// created just now: their error arrives before the list that contains them.
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

// takeListed moves the errors of the group's instances to last, and returns them. If the
// server lists no instances, all errors are assumed to belong to the group.
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

// errorReported stores an error of the shard's provider. An error about the group is recorded
// as an event at once, an error about an instance when the shard lists it. Groups without a
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

// reviewFailure returns the provider's last error, "" if it has reported no error or if the
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
