// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestAsked(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*clusterv1.MachinePool)
		want   bool
	}{
		"no record at all":      {func(*clusterv1.MachinePool) {}, true},
		"made without a number": {func(m *clusterv1.MachinePool) { unasked(m) }, false},
		"made with a number": {func(m *clusterv1.MachinePool) {
			m.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
		}, true},
		// The scale subresource leaves no owner.
		"scaled": {func(m *clusterv1.MachinePool) { unasked(m).Generation = 2 }, true},
	} {
		object := machinePool("workers", ptr.To[int32](1))
		object.Generation = 1
		test.change(object)
		if got := asked(object); got != test.want {
			t.Errorf("%s: asked is %t, want %t", name, got, test.want)
		}
	}
}
