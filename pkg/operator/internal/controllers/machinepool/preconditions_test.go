// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestReplicasExplicit(t *testing.T) {
	pool := newPool("a")
	spread := []*v1beta1.NstanceShardGroup{newShardGroup(pool, "a", 1)}
	for name, test := range map[string]struct {
		owned  []*v1beta1.NstanceShardGroup
		change func(*clusterv1.MachinePool)
		want   bool
	}{
		"no record at all":      {nil, func(*clusterv1.MachinePool) {}, true},
		"made without a number": {nil, func(m *clusterv1.MachinePool) { withDefaultReplicas(m) }, false},
		"made with a number": {nil, func(m *clusterv1.MachinePool) {
			m.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
		}, true},
		// It may have been edited in some other field.
		"changed since it was made without a number": {nil, func(m *clusterv1.MachinePool) { withDefaultReplicas(m).Generation = 2 }, false},
		// The scale subresource leaves no owner.
		"scaled after the pool was spread": {spread, func(m *clusterv1.MachinePool) { withDefaultReplicas(m).Generation = 2 }, true},
	} {
		object := machinePool("workers", ptr.To[int32](1))
		object.Generation = 1
		test.change(object)
		if got := replicasExplicit(observation{pool: pool, shardGroups: test.owned}, object); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}
