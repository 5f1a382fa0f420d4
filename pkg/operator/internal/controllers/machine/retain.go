// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// isRetained reports whether the instance of a pool stays on its shard when the
// NstanceMachine is deleted: the pool is being deleted with the policy Retain.
func (c *Controller) isRetained(nstanceMachine *v1beta1.NstanceMachine) (bool, error) {
	ref := controllers.PoolOf(nstanceMachine)
	if ref == nil || nstanceMachine.DeletionTimestamp.IsZero() {
		return false, nil
	}
	pool, err := controller.GetCached(c.poolLister.Get, "pool", c.key(ref.Name))
	if err != nil || pool == nil || pool.UID != ref.UID {
		return false, err
	}
	return !pool.DeletionTimestamp.IsZero() && pool.Spec.DeletionPolicy == v1beta1.DeletionRetain, nil
}
