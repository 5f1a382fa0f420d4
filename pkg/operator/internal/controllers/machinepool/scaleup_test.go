// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// An instance was selected, and a scale-up revoked that before it was terminated. Its
// Machine is still being deleted, and is a candidate of the next scale-down.
func TestRevokedSelectionIsACandidateAgain(t *testing.T) {
	deleting := func(machine *clusterv1.Machine) {
		machine.DeletionTimestamp, machine.Finalizers = ptr.To(metav1.Now()), []string{"example.com/wait"}
	}
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2", "b3"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": deleting})
	replicas := func(now int32) {
		t.Helper()
		h.CAPI.Created = slices.DeleteFunc(h.CAPI.Created, func(object *unstructured.Unstructured) bool { return object.GetKind() == "MachinePool" })
		h.live(now)
		h.Show()
		_, _, err := h.sync()
		require.NoError(t, err)
		h.Show()
	}
	replicas(5)
	h.expectSizes(map[string]int32{"a": 1, "b": 3, "c": 1})
	replicas(6)
	h.expectSizes(map[string]int32{"a": 2, "b": 3, "c": 1})
	replicas(5)
	h.expectSizes(map[string]int32{"a": 1, "b": 3, "c": 1})
}
