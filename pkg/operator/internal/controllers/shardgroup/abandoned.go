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

// abandonedValue returns the value of the annotation that gives up the instances of
// object. It has their number, so that a value that was set earlier does not give up more.
func abandonedValue(object *v1beta1.NstanceShardGroup) string {
	number := "unknown"
	if object.Status.Replicas != nil {
		number = fmt.Sprint(*object.Status.Replicas)
	}
	return fmt.Sprintf("%s/%s", object.Spec.Shard, number)
}

// canAbandon reports whether the instances of object can be given up: no server can
// confirm that they are deleted.
func canAbandon(object *v1beta1.NstanceShardGroup, observed observation) bool {
	return !observed.configured && !object.DeletionTimestamp.IsZero() && observed.paused == "" &&
		slices.Contains(object.Finalizers, v1beta1.FinalizerShardGroup)
}

// abandoned reports whether an administrator has decided to give them up.
func abandoned(object *v1beta1.NstanceShardGroup, observed observation) bool {
	return canAbandon(object, observed) && object.Annotations[v1beta1.AnnotationAbandonedShard] == abandonedValue(object)
}

// howToAbandon returns how an administrator gives up the instances.
func howToAbandon(object *v1beta1.NstanceShardGroup) string {
	number := "an unknown number of"
	if object.Status.Replicas != nil {
		number = fmt.Sprintf("the %d", *object.Status.Replicas)
	}
	return fmt.Sprintf("if the shard is lost, the annotation %s=%s gives up %s instances",
		v1beta1.AnnotationAbandonedShard, abandonedValue(object), number)
}

// abandon lets the API server delete object without a confirmation of the shard. Its
// provider ids leave the pool with it, and Cluster API deletes their Nodes.
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
