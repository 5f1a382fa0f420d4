// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// newDeletedMember returns a harness with a pool member that is being deleted, of a pool that
// change changes.
func newDeletedMember(t *testing.T, change func(*v1beta1.NstanceMachinePool)) *harness {
	t.Helper()
	h := newHarness(t, newShards("a", "b"), deleting(owned(runningPoolMember("m"))))
	h.list(listed(shard.InstanceRunning))
	h.addPool(5, 3, 2)
	pool := newPool()
	change(pool)
	require.NoError(t, h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), pool, controllertest.Namespace))
	return h
}

// The instance is not deleted, whatever is known of the shard.
func TestRetainedInstanceIsNotDeleted(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"its shard is connected":      func(*harness) {},
		"its shard is away":           func(h *harness) { h.shardA().Reachable = false },
		"its shard is not configured": func(h *harness) { delete(h.Fake.ByID, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newDeletedMember(t, func(pool *v1beta1.NstanceMachinePool) {
				controllertest.Deleting(pool)
				pool.Spec.DeletionPolicy = v1beta1.DeletionRetain
			})
			change(h)
			h.Expect(patchM)
			assert.Nil(t, h.nstanceMachine("m"))
		})
	}
}

// The policy matters only for the deletion of the pool of this instance.
func TestOtherInstancesAreNotRetained(t *testing.T) {
	for name, change := range map[string]func(*v1beta1.NstanceMachinePool){
		"the pool is not being deleted": func(pool *v1beta1.NstanceMachinePool) { pool.Spec.DeletionPolicy = v1beta1.DeletionRetain },
		"another pool of the name": func(pool *v1beta1.NstanceMachinePool) {
			controllertest.Deleting(pool)
			pool.Spec.DeletionPolicy, pool.UID = v1beta1.DeletionRetain, "uid-of-another"
		},
	} {
		t.Run(name, func(t *testing.T) {
			newDeletedMember(t, change).Expect(deleteMOnA, applyStatusM)
		})
	}
}
