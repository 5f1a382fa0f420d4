// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"time"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// rejection is a request that a shard has rejected. It is not sent again until the
// object or the server's group changes, or until has passed.
type rejection struct {
	revision shard.Revision
	// replaces is the value of the annotation.
	replaces string
	etag     string
	reported shard.Revision
	// stale means that the server has a newer revision, and not that it rejects the
	// configuration.
	stale bool
	// unclear is the error of a call that the server has rejected, or whose connection
	// broke; nil for a rejection.
	unclear error
	until   time.Time
	message string
}

// newRejection returns the rejection with err of a request for object.
func newRejection(object *v1beta1.NstanceShardGroup, group *shard.Group, err error, now time.Time) *rejection {
	return &rejection{
		revision: revisionOf(object),
		replaces: object.Annotations[v1beta1.AnnotationReplaces],
		etag:     etag(group),
		reported: reportedRevision(group),
		stale:    shard.IsStale(err),
		until:    now.Add(rejectedRetry),
		message:  shard.Message(err),
	}
}

// newUnclear returns the rejection with err, for which shard.IsUnclear, of a request for
// object: a rejection if the last reply to the same request had the same text, and
// otherwise only a delay.
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

// clearUnclear drops the last unclear reply, because there was another one.
func (c *Controller) clearUnclear(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unclear, key)
}

// stillApplies reports whether the rejected request is the one that would be sent now.
func (r *rejection) stillApplies(object *v1beta1.NstanceShardGroup, group *shard.Group, now time.Time) bool {
	return r != nil && r.revision == revisionOf(object) && r.replaces == object.Annotations[v1beta1.AnnotationReplaces] &&
		r.etag == etag(group) && r.reported == reportedRevision(group) && now.Before(r.until)
}

func etag(group *shard.Group) string {
	if group == nil {
		return ""
	}
	return group.ETag
}

// reviewRejection drops a rejection that no longer applies, also because the server
// now has what was rejected.
func (c *Controller) reviewRejection(key cache.ObjectName, object *v1beta1.NstanceShardGroup, observed observation, now time.Time) {
	if !observed.synced {
		return
	}
	if !c.rejection(key).stillApplies(object, observed.group, now) ||
		observed.group != nil && inOrder(&object.Spec, observed.group) && recorded(object, observed.group) {
		c.setRejection(key, nil)
	}
}

// rejection returns the rejection of a shard group, nil when there is none.
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

// forget drops the state of a shard group that was deleted.
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
