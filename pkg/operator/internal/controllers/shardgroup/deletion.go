// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/operator/shard"
)

// deletion is a call to DeleteGroup that has succeeded.
type deletion struct {
	uid types.UID
	at  time.Time
}

// unlisted is a call to DeleteGroup that has succeeded, and after which the groups of the
// shard have to be listed.
type unlisted struct {
	uid  types.UID
	mark uint64
}

// remove deletes the group. A deletion that an administrator has decided on although
// the server has a newer revision is sent with that revision.
func (c *Controller) remove(ctx context.Context, key cache.ObjectName, object *v1beta1.NstanceShardGroup, observed observation) error {
	revision := revisionOf(object)
	if last := replaced(object, observed.group); last != nil && newer(object, observed.group) {
		revision = *last
	}
	ctx, _ = audit.WithNewRequest(ctx)
	err := c.calls.DeleteGroup(ctx, string(object.Spec.Shard), string(object.Spec.Group), &revision)
	c.auditDelete(ctx, key, object, observed.group, err)
	if shard.IsStale(err) {
		c.setRejection(key, newRejection(object, observed.group, err, c.clock.Now()))
	}
	if err == nil {
		mark := c.groups.Relist(string(object.Spec.Shard))
		c.mu.Lock()
		c.unlisted[key] = unlisted{uid: object.UID, mark: mark}
		c.mu.Unlock()
	}
	return err
}

// reviewDeletion returns whether a list of the groups is awaited since the deletion was
// sent, and whether it has confirmed the deletion. If it has the group still, the deletion
// is sent again when something changes.
func (c *Controller) reviewDeletion(key cache.ObjectName, object *v1beta1.NstanceShardGroup, group *shard.Group) (awaited, confirmed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent, found := c.unlisted[key]
	switch {
	case !found || sent.uid != object.UID:
		return false, false
	case !c.groups.ListedSince(string(object.Spec.Shard), sent.mark):
		return true, false
	case group == nil || group.Static:
		return false, true
	default:
		delete(c.unlisted, key)
		return true, false
	}
}

// unreviewed reports whether the deletion of object was sent, and no sync has read the list
// that is to confirm it. That list may be in the cache already, and changes nothing in it
// if the shard had no such group, so that no handler enqueues the object.
func (c *Controller) unreviewed(key cache.ObjectName, object *v1beta1.NstanceShardGroup) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent, found := c.unlisted[key]
	return found && sent.uid == object.UID
}

// confirmed reports whether the shard has completed a deletion: in a list that began
// after the deletion it does not have the group, or has it from its own configuration. The
// cache from before may lack a group whose upsert had no reply. Until then instances may run,
// and their ids must stay in the pool, because Cluster API deletes the Nodes of ids
// that leave it (docs/capi.md#provider-ids).
//
// The group may also be that of another object, which a deletion does not touch if the
// group of this object was deleted before. The reply does not say so, and the cache may
// be older than the reply. So the deletion is confirmed by a second one after a while,
// if the cache still has such a group.
func (c *Controller) confirmed(key cache.ObjectName, object *v1beta1.NstanceShardGroup, group *shard.Group) bool {
	if _, confirmed := c.reviewDeletion(key, object, group); confirmed || group == nil || group.Static {
		return confirmed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ofAnother(object, group) {
		delete(c.deletions, key)
		return false
	}
	if first, found := c.deletions[key]; found && first.uid == object.UID {
		return c.clock.Since(first.at) >= deletionSettles
	}
	c.deletions[key] = deletion{uid: object.UID, at: c.clock.Now()}
	return false
}

// settling returns the time until a deletion that may be confirmed is sent again, 0 if
// there was none.
func (c *Controller) settling(key cache.ObjectName, object *v1beta1.NstanceShardGroup, group *shard.Group) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, found := c.deletions[key]
	if !found || first.uid != object.UID || !ofAnother(object, group) {
		return 0
	}
	return max(0, deletionSettles-c.clock.Since(first.at))
}

// ofAnother reports whether a group exists and the server has it from another object.
func ofAnother(object *v1beta1.NstanceShardGroup, group *shard.Group) bool {
	return group != nil && !group.Deleting && group.Revision != nil && group.Revision.UID != string(object.UID)
}
