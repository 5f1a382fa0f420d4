// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
