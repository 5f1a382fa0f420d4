// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Each change of the desired number is an event with both numbers.
func TestScalingIsRecorded(t *testing.T) {
	pool := newPool("a", "b", "c")
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0, "c": 0}), pool)
	step := func(replicas int32, want ...string) {
		t.Helper()
		h.scale(replicas)
		_, _, err := h.sync()
		assert.NoError(t, err)
		h.Show()
		for _, shard := range []string{"a", "b", "c"} {
			h.report(shard, func(g *v1beta1.NstanceShardGroup) { ready(g) })
		}
		_, _, err = h.sync()
		assert.NoError(t, err)
		h.Show()
		assert.Equal(t, want, h.Events())
	}
	step(9)
	step(12, "Normal Scaled from 9 to 12 instances")
	step(15, "Normal Scaled from 12 to 15 instances")
	step(15)
	step(9, "Normal Scaled from 15 to 9 instances")

	// The sizes do not change while the replicas cannot be divided.
	step(10_001, `Warning TooManyReplicas MachinePool "workers" has 10001 replicas, and a pool has at most 10000; the sizes stay`)
	h.expectSizes(map[string]int32{"a": 3, "b": 3, "c": 3})
	step(9)
}

func TestShardsThatAreConnectedAgainAreRecorded(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1)), ready(newShardGroup(pool, "b", 1)))
	h.scale(2)
	sync := func(want ...string) {
		t.Helper()
		_, _, err := h.sync()
		assert.NoError(t, err)
		h.Show()
		assert.Equal(t, want, h.Events())
	}
	sync()
	h.report("b", func(g *v1beta1.NstanceShardGroup) { away(g) })
	sync("Warning ShardUnreachable b: connection refused")
	h.report("b", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	sync("Normal ShardsReachable all shards of the pool are connected again")
	sync()
}

func TestLastWriter(t *testing.T) {
	entry := func(manager, subresource, fields string, second int) metav1.ManagedFieldsEntry {
		at := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC))
		return metav1.ManagedFieldsEntry{
			Manager: manager, Subresource: subresource, Time: &at, FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	replicas := `{"f:spec":{"f:replicas":{}}}`
	tests := []struct {
		name    string
		entries []metav1.ManagedFieldsEntry
		want    string
	}{
		{"no managedFields", nil, ""},
		{"another field", []metav1.ManagedFieldsEntry{entry("kubectl", "", `{"f:spec":{"f:template":{}}}`, 1)}, ""},
		{"a field of that name elsewhere", []metav1.ManagedFieldsEntry{entry("capi", "status", `{"f:status":{"f:replicas":{}}}`, 1)}, ""},
		{"damaged", []metav1.ManagedFieldsEntry{entry("kubectl", "", `{"f:spec":`, 1), {Manager: "none"}}, ""},
		{"an edit", []metav1.ManagedFieldsEntry{entry("kubectl-edit", "", replicas, 1)}, "MachinePool workers, spec.replicas: kubectl-edit at 2026-01-01T00:00:01Z"},
		{
			"the last of two", []metav1.ManagedFieldsEntry{entry("kubectl", "scale", replicas, 2), entry("helm", "", replicas, 1)},
			"MachinePool workers, spec.replicas: kubectl through scale at 2026-01-01T00:00:02Z",
		},
		{
			"without a time", []metav1.ManagedFieldsEntry{{Manager: "old", FieldsV1: metav1.NewFieldsV1(replicas)}},
			"MachinePool workers, spec.replicas: old",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.want, lastWriter("MachinePool workers", test.entries, replicasSetting))
		})
	}
}
