// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

var pausedAnnotation = map[string]string{clusterv1.PausedAnnotation: ""}

func TestPausedPoolWritesNoSpecAndStillReports(t *testing.T) {
	for name, test := range map[string]struct {
		pause   func(*harness, *v1beta1.NstanceMachinePool)
		message string
	}{
		"its Cluster": {func(h *harness, _ *v1beta1.NstanceMachinePool) {
			require.NoError(t, h.Informers.Clusters.GetIndexer().Add(controllertest.PausedCluster(controllertest.NewCluster())))
		}, "Cluster cluster--default has spec.paused"},
		"its own annotation": {func(_ *harness, pool *v1beta1.NstanceMachinePool) {
			pool.Annotations = pausedAnnotation
		}, "workers has the annotation"},
		"the annotation of its MachinePool": {func(h *harness, _ *v1beta1.NstanceMachinePool) {
			paused := machinePool("workers", ptr.To[int32](50))
			paused.Annotations = pausedAnnotation
			require.NoError(t, h.Informers.MachinePools.GetIndexer().Update(paused))
		}, "workers has the annotation"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool("a", "b")
			h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"))
			h.scale(50)
			seen := h.pool()
			test.pause(h, seen)
			require.NoError(t, h.Informers.Nstance.NstanceMachinePools().Informer().GetIndexer().Update(seen))
			h.expect(poolStatus)
			status := h.pool().Status
			paused := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionPaused)
			if paused.Status != metav1.ConditionTrue || !strings.Contains(paused.Message, test.message) {
				t.Errorf("Paused is %s: %q", paused.Status, paused.Message)
			}
			if *status.DesiredReplicas != 2 || *status.Replicas != 2 || !meta.IsStatusConditionTrue(status.Conditions, v1beta1.ConditionReady) {
				t.Errorf("the status is %+v, want the shards' own", status)
			}
			if reason, err := h.controller.PausedBy(h.shardGroup("a")); err != nil || !strings.Contains(reason, test.message) {
				t.Errorf("its shard groups are paused by %q, error %v", reason, err)
			}
		})
	}
}

func TestPauseEnqueuesThePoolAndItsShardGroups(t *testing.T) {
	pool := newPool("a", "b")
	paused := pool.DeepCopy()
	paused.Annotations = pausedAnnotation
	pausedMachinePool := machinePool("workers", ptr.To[int32](2))
	pausedMachinePool.Annotations = pausedAnnotation
	both := []string{"workers--a", "workers--b"}
	for name, test := range map[string]struct {
		change func(*Controller)
		want   []string
	}{
		"the pool is paused":   {func(c *Controller) { c.poolChanged(pool, paused) }, both},
		"the pool is unpaused": {func(c *Controller) { c.poolChanged(paused, pool) }, both},
		"its MachinePool is paused": {func(c *Controller) {
			c.machinePoolChanged(machinePool("workers", ptr.To[int32](2)), pausedMachinePool)
		}, both},
		"its Cluster is paused": {func(c *Controller) {
			c.clusterChanged(controllertest.NewCluster(), controllertest.PausedCluster(controllertest.NewCluster()))
		}, both},
		"its Cluster is deleted": {func(c *Controller) { c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), nil) }, both},
		"its Cluster changes in some other way": {func(c *Controller) {
			c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), controllertest.PausedCluster(controllertest.NewCluster()))
		}, nil},
		"the pool has a new spec": {func(c *Controller) { c.poolChanged(nil, pool) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, shardtest.New(), pool.DeepCopy(), newShardGroup(pool, "a", 1), newShardGroup(pool, "b", 1))
			var enqueued []string
			h.controller.AddPauseHandler(func(group cache.ObjectName) { enqueued = append(enqueued, group.Name) })
			test.change(h.controller)
			slices.Sort(enqueued)
			if enqueued = slices.Compact(enqueued); !slices.Equal(enqueued, test.want) {
				t.Errorf("enqueued %q, want %q", enqueued, test.want)
			}
		})
	}
}

// The handlers of a standby are called for as long as another process leads.
func TestStandbyCollectsNoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0}), newPool("a", "b"))
		h.scale(4)
		for i := range 100 {
			deleted := newPool("a")
			deleted.Name = fmt.Sprintf("former-%d", i)
			h.controller.poolChanged(deleted, nil)
		}
		// A sync of a pool that does not exist forgets the MachinePool that was created for it.
		former := controllertest.Key("former-0")
		h.controller.created.Store(former, types.UID("former"))
		assert.Zero(t, h.controller.queue.Len(), "keys of a standby")

		ctx, cancel := context.WithTimeout(h.Ctx, time.Minute)
		defer cancel()
		h.controller.Run(ctx)
		_, kept := h.controller.created.Load(former)
		assert.True(t, kept, "a dropped key was synced")
		assert.NotEmpty(t, h.Writes(), "a new leader syncs every pool")
	})
}
