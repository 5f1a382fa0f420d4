// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// deleteOrphan deletes the MachinePool that was created for a pool that no longer
// exists. A finalizer does not prevent that: the API server may decide to delete an
// object at once before the finalizer is written, and do it afterwards.
func (c *Controller) deleteOrphan(ctx context.Context, pool cache.ObjectName) error {
	uid, ok := c.created.Load(pool)
	if !ok {
		return nil
	}
	_, err := c.pools.Get(ctx, pool.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read pool %s: %w", pool, err)
	}
	// A pool that has got the name takes over the MachinePool.
	if apierrors.IsNotFound(err) {
		err := c.machinePools.Delete(ctx, pool.Name, *metav1.NewPreconditionDeleteOptions(string(uid.(types.UID))))
		// A conflict means that another MachinePool has the name.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete MachinePool %s, whose pool does not exist: %w", pool, err)
		}
		controllers.LogDeletion(ctx, "MachinePool", klog.KRef(pool.Namespace, pool.Name), "its pool was deleted meanwhile", err)
	}
	c.created.Delete(pool)
	return nil
}
