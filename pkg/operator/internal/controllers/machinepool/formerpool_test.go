// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// The MachinePool was deleted and created again, and the cache has the first one.
func TestReplacedMachinePoolSelectsNothing(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}}, nil)
	replicas := int32(3)
	h.scale(replicas)
	another := machinePool("workers", &replicas)
	another.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}
	another.UID = "another"
	h.CAPI.Has(t, another)
	writes, requeue, err := h.sync()
	require.NoError(t, err)
	assert.Empty(t, writes)
	assert.Positive(t, requeue)
}

// The labels of a Machine and the owner of its NstanceMachine have the name of the pool,
// and they are those of a former pool.
func TestInstanceOfAFormerPoolIsNoCandidate(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a2": annotatedAt("now")})
	controllertest.Change(h.API, "a2", func(former *v1beta1.NstanceMachine) { former.OwnerReferences[0].UID = "former" })
	h.Show()
	h.live(3)
	_, _, err := h.sync()
	require.NoError(t, err)
	h.expectSizes(map[string]int32{"a": 1, "b": 1, "c": 1})
	assert.Empty(t, h.shardGroup("a").Spec.RemoveFirst)
}
