// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

func TestSyncCreatesTheMachinePoolWithTheCurrentReplicas(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4, "b": 3}), newPool("a", "b"))
	h.expect()
	if len(h.CAPI.Created) != 1 {
		t.Fatalf("created %v", h.CAPI.Created)
	}
	made := &clusterv1.MachinePool{}
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(h.CAPI.Created[0].Object, made))
	spec := made.Spec.Template.Spec
	if made.Name != "workers" || ptr.Deref(made.Spec.Replicas, -1) != 7 {
		t.Errorf("made %q with replicas %v", made.Name, made.Spec.Replicas)
	}
	if made.Spec.ClusterName != "cluster--default" || spec.ClusterName != "cluster--default" {
		t.Errorf("of clusters %q and %q", made.Spec.ClusterName, spec.ClusterName)
	}
	// Cluster API rejects a MachinePool without the name of a bootstrap Secret.
	if spec.Bootstrap.DataSecretName == nil || *spec.Bootstrap.DataSecretName != "" {
		t.Errorf("with the bootstrap Secret %v", spec.Bootstrap.DataSecretName)
	}
	want := clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: "NstanceMachinePool", Name: "workers"}
	if spec.InfrastructureRef != want {
		t.Errorf("for %+v, want %+v", spec.InfrastructureRef, want)
	}

	// The cache does not have it yet.
	h.Show()
	writes, requeue, err := h.sync()
	if err != nil || len(writes) > 0 || requeue != controller.StaleRetry || len(h.CAPI.Created) != 1 {
		t.Errorf("before the cache shows it: wrote %q, requeue %s, error %v, created %d", writes, requeue, err, len(h.CAPI.Created))
	}
	made.ResourceVersion = h.CAPI.Created[0].GetResourceVersion()
	require.NoError(t, h.Informers.MachinePools.GetIndexer().Add(made))
	h.expect(groupA, groupB)
}

func TestSyncCreatesZeroReplicasExplicitly(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), newPool("a"))
	h.expect()
	if len(h.CAPI.Created) != 1 {
		t.Fatalf("created %v", h.CAPI.Created)
	}
	spec := h.CAPI.Created[0].Object["spec"].(map[string]any)
	if replicas, ok := spec["replicas"]; !ok || replicas != int64(0) {
		t.Errorf("sent replicas %v, set %t; the default of Cluster API is 1", replicas, ok)
	}
}

func TestSyncAcceptsAMachinePoolOfAnotherClient(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), newPool("a"))
	h.CAPI.Taken = []string{"machinepools/workers"}
	h.expect()
	if len(h.CAPI.Created) > 0 {
		t.Errorf("created %v", h.CAPI.Created)
	}
}

func TestSyncDoesNotCreateTheMachinePoolBeforeEveryShardWasRead(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 4, "b": 3}), pool)
	h.Fake.ByID["b"].Synced = false
	h.expect(poolStatus)
	if len(h.CAPI.Created) > 0 {
		t.Errorf("created %v from a part of the shards", h.CAPI.Created)
	}
	got := meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionReady)
	if got.Reason != v1beta1.ReasonNotSynced {
		t.Errorf("Ready says %s: %s", got.Reason, got.Message)
	}
}

// The API server may delete a pool whose finalizer was written during the deletion.
func TestMachinePoolOfAPoolThatWasDeletedMeanwhileIsDeleted(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), newPool("a"))
	h.expect()
	require.Len(t, h.CAPI.Created, 1)
	h.expect()
	require.Empty(t, h.CAPI.Changed, "the pool exists, even if the cache is stale")

	pools := v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools")
	require.NoError(t, h.Tracker().Delete(pools, controllertest.Namespace, "workers"))
	h.Remove(h.Informers.Nstance.NstanceMachinePools().Informer(), newPool("a"))
	h.Writes()
	h.expect()
	require.Len(t, h.CAPI.Changed, 1)
	assert.Contains(t, h.CAPI.Changed[0], "DELETE machinepools/workers")
	assert.Contains(t, h.CAPI.Changed[0], `"preconditions":{"uid":"uid-of-workers"}`)
	h.expect()
	assert.Len(t, h.CAPI.Changed, 1, "deletions")
}
