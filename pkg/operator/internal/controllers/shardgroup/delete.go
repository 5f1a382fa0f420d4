// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// deletion is a successful call of DeleteGroup.
type deletion struct {
	uid types.UID
	at  time.Time
}

// unlisted is a successful call of DeleteGroup after which the groups of the shard must be
// listed.
type unlisted struct {
	uid  types.UID
	mark uint64
}

// remove deletes the group. If an administrator has decided on the deletion although the
// server has a newer revision, that revision is sent.
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

// reviewDeletion returns whether the deletion awaits a list of the groups that began after it,
// and whether such a list has confirmed it. If the list still has the group, the deletion is
// sent again when something changes.
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

// unreviewed reports whether the deletion of object was sent, but no sync has read the list
// that confirms it. The list may already be complete. If it did not change the cache, because
// the shard had no such group, no handler enqueues the object.
func (c *Controller) unreviewed(key cache.ObjectName, object *v1beta1.NstanceShardGroup) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent, found := c.unlisted[key]
	return found && sent.uid == object.UID
}

// confirmed reports whether the shard has completed a deletion: a list that began after the
// deletion does not have the group, or has it from the server's own configuration. An older
// cache may lack a group whose upsert had no reply. Until the deletion is confirmed, instances
// may run, and their ids must stay in the pool, because Cluster API deletes the Nodes of ids
// that leave it (docs/capi.md#provider-ids).
//
// The group may also belong to another object. A deletion does not affect it if the group of
// this object was deleted before. The reply does not report this, and the cache may be older
// than the reply. So if the cache still has such a group after a while, a second deletion
// confirms the first.
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

// settling returns the time until a deletion that may be confirmed is sent again, 0 if it was
// not sent.
func (c *Controller) settling(key cache.ObjectName, object *v1beta1.NstanceShardGroup, group *shard.Group) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, found := c.deletions[key]
	if !found || first.uid != object.UID || !ofAnother(object, group) {
		return 0
	}
	return max(0, deletionSettles-c.clock.Since(first.at))
}

// ofAnother reports whether the group on the server belongs to another object.
func ofAnother(object *v1beta1.NstanceShardGroup, group *shard.Group) bool {
	return group != nil && !group.Deleting && group.Revision != nil && group.Revision.UID != string(object.UID)
}

// finalize completes the deletion of the object after the shard has confirmed the deletion of
// the group.
func (c *Controller) finalize(ctx context.Context, object *v1beta1.NstanceShardGroup) error {
	if err := c.removeFinalizer(ctx, object); err != nil {
		return err
	}
	controller.Record(c.recorder, object, reasonGroupDeleted, "DeleteGroup",
		fmt.Sprintf("shard %q has deleted group %q", object.Spec.Shard, object.Spec.Group))
	return nil
}

// removeFinalizer lets the API server delete the object.
func (c *Controller) removeFinalizer(ctx context.Context, object *v1beta1.NstanceShardGroup) error {
	patch, err := controller.RemoveFinalizer(object, v1beta1.FinalizerShardGroup)
	if err != nil || patch == nil {
		return err
	}
	_, err = c.client.Patch(ctx, object.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of shard group %s: %w", klog.KObj(object), err)
	}
	return nil
}

// retained reports whether object is deleted without its group. That requires no shard. If a
// deletion was sent before the policy became Retain, it is completed.
func retained(object *v1beta1.NstanceShardGroup, observed observation) bool {
	return object.Spec.DeletionPolicy == v1beta1.DeletionRetain && !object.DeletionTimestamp.IsZero() &&
		slices.Contains(object.Finalizers, v1beta1.FinalizerShardGroup) && observed.paused == "" &&
		!observed.unlisted && !observed.confirmed && (observed.group == nil || !observed.group.Deleting)
}

// retain lets the API server delete object, and leaves the group on the shard.
func (c *Controller) retain(ctx context.Context, object *v1beta1.NstanceShardGroup, reason string) error {
	if err := c.removeFinalizer(ctx, object); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Retained the group on its shard", "shard", object.Spec.Shard, "size", object.Spec.Size, "reason", reason)
	controller.Record(c.recorder, object, reasonGroupRetained, "Retain",
		fmt.Sprintf("shard %q keeps group %q and its instances, because %s", object.Spec.Shard, object.Spec.Group, reason))
	return nil
}

// abandonedValue returns the value of the annotation that gives up the instances of object. It
// contains their number, so that an older value does not give up more instances.
func abandonedValue(object *v1beta1.NstanceShardGroup) string {
	number := "unknown"
	if object.Status.Replicas != nil {
		number = fmt.Sprint(*object.Status.Replicas)
	}
	return fmt.Sprintf("%s/%s", object.Spec.Shard, number)
}

// canAbandon reports whether the instances of object can be given up, because no server can
// confirm that they are deleted.
func canAbandon(object *v1beta1.NstanceShardGroup, observed observation) bool {
	return !observed.configured && !object.DeletionTimestamp.IsZero() && observed.paused == "" &&
		slices.Contains(object.Finalizers, v1beta1.FinalizerShardGroup)
}

// abandoned reports whether an administrator has decided to give up the instances.
func abandoned(object *v1beta1.NstanceShardGroup, observed observation) bool {
	return canAbandon(object, observed) && object.Annotations[v1beta1.AnnotationConfirmAbandon] == abandonedValue(object)
}

// howToAbandon returns how an administrator gives up the instances.
func howToAbandon(object *v1beta1.NstanceShardGroup) string {
	number := "an unknown number of"
	if object.Status.Replicas != nil {
		number = fmt.Sprintf("the %d", *object.Status.Replicas)
	}
	return fmt.Sprintf("if the shard is lost, the annotation %s=%s gives up %s instances",
		v1beta1.AnnotationConfirmAbandon, abandonedValue(object), number)
}

// abandon lets the API server delete object although the shard has not confirmed the deletion.
// Its provider ids then leave the pool, and Cluster API deletes their Nodes.
func (c *Controller) abandon(ctx context.Context, object *v1beta1.NstanceShardGroup) error {
	if err := c.removeFinalizer(ctx, object); err != nil {
		return err
	}
	value := abandonedValue(object)
	klog.FromContext(ctx).Info("Gave up the instances of a shard that is not configured, as the annotation says",
		"shard", object.Spec.Shard, "value", value, "providerIDs", object.Status.ProviderIDs)
	controller.Warn(c.recorder, object, reasonShardAbandoned, "Abandon",
		fmt.Sprintf("the instances on shard %q were given up: %s", object.Spec.Shard, value))
	return nil
}
