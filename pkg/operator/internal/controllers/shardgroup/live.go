// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// This file has every read of the API server. A sync reads caches. Before instances are
// terminated, it also reads what the pool wants.

// editedRetry is the delay before a shard group that another writer has changed, or whose
// cache is stale, is looked at again. The pool reverts it before that.
const editedRetry = time.Second

// shrinks reports whether an upsert makes the group smaller.
func shrinks(object *v1beta1.NstanceShardGroup, group *shard.Group) bool {
	return group != nil && object.Spec.Size < group.Size
}

// sizeIsOfPool reports whether the operator has written the size of a shard group, and the
// cache has that size. Any other size is an edit, which the pool reverts: it must terminate
// nothing before.
func (c *Controller) sizeIsOfPool(ctx context.Context, object *v1beta1.NstanceShardGroup) (bool, error) {
	live, err := c.client.Get(ctx, object.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read shard group %s: %w", klog.KObj(object), err)
	case live.UID != object.UID || live.Generation != object.Generation:
		return false, nil
	}
	if writer := editor(live.ManagedFields); writer != "" {
		klog.FromContext(ctx).Info("The size was written by another client, it is not sent", "size", live.Spec.Size, "writer", writer)
		return false, nil
	}
	return true, nil
}

// editor returns the manager that has written another size than the operator, "" if none has. A
// manager that has written the same size owns it together with the operator
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
func editor(entries []metav1.ManagedFieldsEntry) string {
	writer := ""
	for i := range entries {
		entry := &entries[i]
		if entry.Manager == unmanaged || !ownsSize(entry) {
			continue
		}
		if entry.Manager == controllers.FieldManager {
			return ""
		}
		writer = entry.Manager
	}
	return writer
}

// unmanaged is the manager of fields that were written before the API server had managers for
// the object, as in a restore.
const unmanaged = "before-first-apply"

func ownsSize(entry *metav1.ManagedFieldsEntry) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	var owned struct {
		Spec struct {
			Size *struct{} `json:"f:size"`
		} `json:"f:spec"`
	}
	return json.NewDecoder(entry.FieldsV1.GetRawReader()).Decode(&owned) == nil && owned.Spec.Size != nil
}

// deletionWanted reports whether the group of a shard group that is being deleted may be
// deleted on its shard: its owner or a user has deleted it, or an administrator has confirmed
// the deletion. A shard group whose owner was replaced, as by a restore, is garbage to the API
// server, and its instances are not: the pool that exists now wants them.
func (c *Controller) deletionWanted(ctx context.Context, object *v1beta1.NstanceShardGroup) (bool, error) {
	if object.Annotations[v1beta1.AnnotationConfirmDeletion] == object.Name {
		return true, nil
	}
	wanted, err := c.options.Pools.Wants(ctx, object)
	return !wanted, err
}
