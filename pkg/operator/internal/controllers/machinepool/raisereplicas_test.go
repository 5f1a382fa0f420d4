// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Cluster API sets replicas to 1 if a user omits them.
func TestSyncRaisesDefaultReplicas(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 4}), newPool("a", "b"))
	defaulted := withDefaultReplicas(machinePool("workers", ptr.To[int32](1)))
	defaulted.ResourceVersion = "7"
	require.NoError(t, h.Informers.MachinePools.GetIndexer().Add(defaulted))
	h.expect()
	want := []string{`PATCH machinepools/workers/scale {"metadata":{"resourceVersion":"7"},"spec":{"replicas":5}}`}
	if !slices.Equal(h.CAPI.Changed, want) {
		t.Errorf("did %q, want %q", h.CAPI.Changed, want)
	}
	h.scale(5)
	h.expect(groupA, groupB)
	for shard, size := range map[string]int32{"a": 1, "b": 4} {
		group := h.shardGroup(shard)
		if group.Spec.Size != size || group.Annotations[v1beta1.AnnotationKept] != "5 over a,b" {
			t.Errorf("shard %s has size %d and the note %q, want the imported size %d", shard, group.Spec.Size, group.Annotations[v1beta1.AnnotationKept], size)
		}
	}
	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	h.report("b", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	h.expect(poolStatus)

	// Explicit replicas are spread evenly.
	h.Show()
	h.scale(6)
	h.expect(poolStatus, groupA, groupB)
	for shard, size := range map[string]int32{"a": 3, "b": 3} {
		group := h.shardGroup(shard)
		if _, noted := group.Annotations[v1beta1.AnnotationKept]; group.Spec.Size != size || noted {
			t.Errorf("shard %s has size %d and the annotations %v, want %d and none", shard, group.Spec.Size, group.Annotations, size)
		}
	}
	h.Show()
	h.scale(5)
	h.expect(poolStatus, groupB)
}
