// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestAsked(t *testing.T) {
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	for name, test := range map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    bool
	}{
		"no record at all": {nil, true},
		"the replicas of a webhook have no owner": {[]metav1.ManagedFieldsEntry{
			entry("kubectl-create", `{"f:spec":{".":{},"f:clusterName":{},"f:template":{"f:spec":{"f:clusterName":{}}}}}`),
		}, false},
		"a user wrote them": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:metadata":{"f:finalizers":{}}}`), entry("kubectl-create", `{"f:spec":{"f:clusterName":{},"f:replicas":{}}}`),
		}, true},
		"they were scaled": {[]metav1.ManagedFieldsEntry{
			entry("kubectl", `{"f:spec":{"f:replicas":{}}}`),
		}, true},
		"the replicas of the status are others": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:status":{"f:replicas":{}}}`),
		}, false},
		"a record that cannot be read is none of an owner": {[]metav1.ManagedFieldsEntry{entry("x", `{`), {}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			object := machinePool("workers", ptr.To[int32](1))
			object.ManagedFields = test.entries
			if got := asked(object); got != test.want {
				t.Errorf("asked is %t, want %t", got, test.want)
			}
			kept, err := KeepReplicasOwners(object)
			if err != nil {
				t.Fatal(err)
			}
			if got := asked(object); kept != any(object) || got != test.want {
				t.Errorf("after the transform asked is %t, want %t", got, test.want)
			}
			for _, entry := range object.ManagedFields {
				if entry.FieldsV1 != nil && !strings.Contains(entry.FieldsV1.GetRawString(), "f:replicas") {
					t.Errorf("the record %+v is of no use", entry)
				}
			}
		})
	}
	scaled := unasked(machinePool("workers", ptr.To[int32](1)))
	scaled.Generation = 2
	if !asked(scaled) {
		t.Error("a number that was scaled to is not asked for; the scale subresource leaves no owner")
	}
	if _, err := KeepReplicasOwners("something else"); err != nil {
		t.Error(err)
	}
}
