// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestDisownSpec(t *testing.T) {
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, Subresource: subresource, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const (
		update = metav1.ManagedFieldsOperationUpdate
		apply  = metav1.ManagedFieldsOperationApply
		spec   = `{"f:spec":{"f:replicas":{}}}`
	)
	kept := []metav1.ManagedFieldsEntry{
		entry(FieldManager, apply, "", `{"f:spec":{"f:providerIDList":{}}}`),
		entry(FieldManager, update, "status", spec),
		entry(FieldManager, update, "", `{"f:metadata":{"f:labels":{"\"f:spec\"":{}}}}`),
		entry("kubectl", update, "", spec),
	}
	for name, test := range map[string]struct {
		entries, want []metav1.ManagedFieldsEntry
		owns          bool
	}{
		"none": {},
		"fields of others, and what stays the operator's": {entries: kept, want: kept},
		"created with a finalizer": {
			entries: []metav1.ManagedFieldsEntry{entry(FieldManager, update, "", `{"f:metadata":{"f:finalizers":{}},"f:spec":{"f:group":{}}}`), kept[3]},
			want:    []metav1.ManagedFieldsEntry{entry(FieldManager, update, "", `{"f:metadata":{"f:finalizers":{}}}`), kept[3]},
			owns:    true,
		},
		"created without metadata": {entries: []metav1.ManagedFieldsEntry{entry(FieldManager, update, "", spec), kept[3]}, want: kept[3:], owns: true},
		"the only manager":         {entries: []metav1.ManagedFieldsEntry{entry(FieldManager, update, "", spec)}, owns: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := OperatorOwnsSpec(test.entries); got != test.owns {
				t.Errorf("owns the spec: %t, want %t", got, test.owns)
			}
			got, err := DisownSpec(test.entries)
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("error %v, kept (-want +got):\n%s", err, diff)
			}
			if OperatorOwnsSpec(got) {
				t.Error("the spec is still owned")
			}
			cached := trimmed(t, &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{ManagedFields: test.entries}})
			if got := OperatorOwnsSpec(cached.ManagedFields); got != test.owns {
				t.Errorf("after the transform owns the spec: %t, want %t", got, test.owns)
			}
		})
	}
	if _, err := DisownSpec([]metav1.ManagedFieldsEntry{entry(FieldManager, update, "", `{"f:spec"`)}); err == nil {
		t.Error("no error for invalid fields")
	}
}
