// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// An instance was chosen, and its place was given to another before it went. Its
// Machine is still being deleted, and counts for the next decrease.
func TestOneThatIsGoingCountsAgainAfterAGrowth(t *testing.T) {
	goes := func(machine *clusterv1.Machine) {
		machine.DeletionTimestamp, machine.Finalizers = ptr.To(metav1.Now()), []string{"example.com/wait"}
	}
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2", "b3"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": goes})
	h.controller.groups = shardGroups{"a": listed("a1", "a2"), "b": listed("b1", "b2", "b3"), "c": listed("c1")}
	replicas := func(now int32) {
		t.Helper()
		h.capi.Created = slices.DeleteFunc(h.capi.Created, func(object *unstructured.Unstructured) bool { return object.GetKind() == "MachinePool" })
		h.live(now)
		h.show()
		if _, _, err := h.sync(); err != nil {
			t.Fatal(err)
		}
		h.show()
	}
	expect := func(when string, sizes map[string]int32) {
		t.Helper()
		for shard, size := range sizes {
			if got := h.shardGroup(shard).Spec; got.Size != size {
				t.Errorf("%s, shard %s has size %d with %q first, want %d", when, shard, got.Size, got.RemoveFirst, size)
			}
		}
	}
	replicas(5)
	expect("chosen", map[string]int32{"a": 1, "b": 3, "c": 1})
	replicas(6)
	expect("grown", map[string]int32{"a": 2, "b": 3, "c": 1})
	replicas(5)
	expect("fewer again", map[string]int32{"a": 1, "b": 3, "c": 1})
}
