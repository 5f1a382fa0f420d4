// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestReplicasOwned(t *testing.T) {
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	for name, test := range map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    bool
	}{
		"no managed fields": {nil, false},
		"set by a webhook": {[]metav1.ManagedFieldsEntry{
			entry("kubectl-create", `{"f:spec":{".":{},"f:clusterName":{},"f:template":{"f:spec":{"f:clusterName":{}}}}}`),
		}, false},
		"set by a user": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:metadata":{"f:finalizers":{}}}`), entry("kubectl-create", `{"f:spec":{"f:clusterName":{},"f:replicas":{}}}`),
		}, true},
		"status.replicas": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:status":{"f:replicas":{}}}`),
		}, false},
		"replicas of the template": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:spec":{"f:template":{"f:replicas":{}}}}`),
		}, false},
		"label of that name": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:metadata":{"f:labels":{"f:replicas":{}}},"f:spec":{"f:clusterName":{}}}`),
		}, false},
		"invalid managed fields": {[]metav1.ManagedFieldsEntry{entry("x", `{`), entry("x", `{"f:replicas"`), {}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			object := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{ManagedFields: test.entries}}
			if got := ReplicasOwned(object); got != test.want {
				t.Errorf("owned is %t, want %t", got, test.want)
			}
			kept := trimmed(t, object)
			if got := ReplicasOwned(kept); got != test.want {
				t.Errorf("after the transform owned is %t, want %t", got, test.want)
			}
			if (len(kept.ManagedFields) == 0) != (len(test.entries) == 0) {
				t.Errorf("the transform turned %d entries into %d", len(test.entries), len(kept.ManagedFields))
			}
		})
	}
}

func trimmed(t *testing.T, machinePool *clusterv1.MachinePool) *clusterv1.MachinePool {
	t.Helper()
	kept, err := TrimMachinePool(machinePool)
	require.NoError(t, err)
	return kept.(*clusterv1.MachinePool)
}
