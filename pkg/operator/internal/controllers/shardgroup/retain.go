// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// retained reports whether object is deleted without its group. That needs no shard. If a
// deletion was sent before the policy was Retain, it is completed.
func retained(object *v1beta1.NstanceShardGroup, observed observation) bool {
	return object.Spec.DeletionPolicy == v1beta1.DeletionRetain && !object.DeletionTimestamp.IsZero() &&
		slices.Contains(object.Finalizers, v1beta1.FinalizerShardGroup) && observed.paused == "" &&
		!observed.unlisted && !observed.confirmed && (observed.group == nil || !observed.group.Deleting)
}

// retain lets the API server delete object, and leaves the group on the shard.
func (c *Controller) retain(ctx context.Context, object *v1beta1.NstanceShardGroup) error {
	if err := c.removeFinalizer(ctx, object); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Retained the group on its shard, because spec.deletionPolicy is Retain", "shard", object.Spec.Shard, "size", object.Spec.Size)
	controller.Record(c.recorder, object, reasonGroupRetained, "Retain",
		fmt.Sprintf("shard %q keeps group %q and its instances", object.Spec.Shard, object.Spec.Group))
	return nil
}
