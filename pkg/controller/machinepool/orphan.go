// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// createdMachinePools are the UIDs of the MachinePools that this process created, by
// pool. It is safe for concurrent use.
type createdMachinePools struct {
	uids sync.Map
}

func (m *createdMachinePools) store(pool cache.ObjectName, uid types.UID) { m.uids.Store(pool, uid) }

func (m *createdMachinePools) forget(pool cache.ObjectName) { m.uids.Delete(pool) }

func (m *createdMachinePools) load(pool cache.ObjectName) (types.UID, bool) {
	uid, ok := m.uids.Load(pool)
	if !ok {
		return "", false
	}
	return uid.(types.UID), true
}

// deleteOrphan deletes the MachinePool that was created for a pool that no longer
// exists. A finalizer does not prevent that: the API server may decide to delete an
// object at once before the finalizer is written, and do it afterwards.
func (c *Controller) deleteOrphan(ctx context.Context, pool cache.ObjectName) error {
	uid, ok := c.created.load(pool)
	if !ok {
		return nil
	}
	_, err := c.pools.Get(ctx, pool.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read pool %s: %w", pool, err)
	}
	// A pool that has got the name takes over the MachinePool.
	if apierrors.IsNotFound(err) {
		err := c.machinePools.Delete(ctx, pool.Name, *metav1.NewPreconditionDeleteOptions(string(uid)))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete MachinePool %s, whose pool does not exist: %w", pool, err)
		}
		klog.FromContext(ctx).Info("Deleted the MachinePool of a pool that was deleted meanwhile", "uid", uid)
	}
	c.created.forget(pool)
	return nil
}
