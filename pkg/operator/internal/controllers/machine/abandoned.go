// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// reasonShardAbandoned is the reason of the event for an instance on a lost shard that was
// given up.
const reasonShardAbandoned = "ShardAbandoned"

// abandonedValue returns the value of the annotation that gives up the instance.
func abandonedValue(observed observation) string {
	return observed.shardID + "/" + cmp.Or(observed.instanceID, "unknown")
}

// planAbandonment decides on the deletion of an instance whose shard is not configured, and
// so cannot confirm the deletion: it waits for an administrator.
func planAbandonment(observed observation, blocked problem) decision {
	value := abandonedValue(observed)
	if observed.nstanceMachine.Annotations[v1beta1.AnnotationAbandonedShard] == value {
		return decision{step: abandonInstance}
	}
	blocked.message = fmt.Sprintf("%s; if the shard is lost, the annotation %s=%s gives up the instance",
		blocked.message, v1beta1.AnnotationAbandonedShard, value)
	return decision{problem: &blocked}
}

// abandon lets the API server delete the NstanceMachine without a confirmation of the
// shard.
func (c *Controller) abandon(ctx context.Context, observed observation) error {
	if err := c.removeFinalizer(ctx, observed.nstanceMachine); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Gave up the instance of a shard that is not configured, as the annotation says",
		"shard", observed.shardID, "instance", observed.instanceID, "providerID", observed.nstanceMachine.Spec.ProviderID)
	controller.Warn(c.recorder, observed.nstanceMachine, reasonShardAbandoned, "Abandon",
		fmt.Sprintf("the instance on shard %q was given up: %s", observed.shardID, abandonedValue(observed)))
	return nil
}
