// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// newPoolHarness returns a harness with a pool of running instances on shard a, and
// their ids. The controller gets deletion notices.
func newPoolHarness(t *testing.T, size int32) (h *serverHarness, ids []string) {
	t.Helper()
	h = newServerHarness(t, "a")
	h.Notices, h.Clock = h.servers.Notices, clock.RealClock{}
	h.restart()
	h.addPool(size, size, 0)
	h.servers.Resize("a", size)
	h.eventually("the instances are listed", func() bool { ids = h.listed(); return len(ids) == int(size) })
	for _, id := range ids {
		h.add(owned(newPoolMember(id)))
	}
	h.eventually("all are ready", func() bool {
		return !slices.ContainsFunc(ids, func(id string) bool {
			return conditionOf(h.nstanceMachine(id), v1beta1.ConditionReady) != "True Ready: "
		})
	})
	return h, ids
}

// listed returns the ids of the instances that the shard lists and is not deleting.
func (h *serverHarness) listed() []string {
	group, _ := h.Groups.Get("a", "workers")
	var ids []string
	for _, instance := range group.Instances {
		if instance.State != shard.InstanceTerminating {
			ids = append(ids, instance.ID)
		}
	}
	return ids
}

func hasProviderID(id string) func(corev1.Node) bool {
	return func(node corev1.Node) bool { return node.Spec.ProviderID == id }
}

func TestManagedInstancesRunWithoutACall(t *testing.T) {
	h, ids := newPoolHarness(t, 3)
	server := h.servers.ByID["a"]
	if calls := server.Calls("GetInstanceStatus", "CreateInstance", "DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d calls", len(calls))
	}
	nodes, err := server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, id := range ids {
		got := h.nstanceMachine(id).Spec.ProviderID
		if got == "" || !slices.ContainsFunc(nodes.Items, hasProviderID(got)) {
			t.Errorf("pool member %s has provider id %q", id, got)
		}
	}
}

func TestAManagedInstanceIsReplaced(t *testing.T) {
	h, ids := newPoolHarness(t, 2)
	h.delete(ids[0])
	h.eventually("it is deleted", func() bool { return h.nstanceMachine(ids[0]) == nil })
	h.eventually("it is replaced", func() bool {
		now := h.listed()
		return len(now) == 2 && slices.Contains(now, ids[1]) && !slices.Contains(now, ids[0])
	})
}

// The NstanceMachine is deleted before pool and shard have lowered their sizes. Its
// instance waits for both: otherwise another instance would be deleted too.
func TestADeletionCandidateIsNotReplaced(t *testing.T) {
	h, ids := newPoolHarness(t, 3)
	candidate := ids[1]
	h.scale(2)
	h.delete(candidate)
	ready := func() string { return conditionOf(h.nstanceMachine(candidate), v1beta1.ConditionReady) }
	h.eventually("it waits for the pool", func() bool {
		return strings.Contains(ready(), "the pool is selecting which of 3 instances are deleted")
	})
	h.Put(h.Informers.MachinePools, newMachinePool(2))
	h.resize(2, candidate)
	h.eventually("it waits for the shard", func() bool { return strings.Contains(ready(), notConfirmed) })
	if calls := h.servers.ByID["a"].Calls("DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d deletions", len(calls))
	}
	h.servers.Resize("a", 2, candidate)
	h.eventually("it is deleted", func() bool { return h.nstanceMachine(candidate) == nil })
	left := []string{ids[0], ids[2]}
	h.eventually("the others stay", func() bool { return slices.Equal(h.listed(), left) })
	if got := h.records(); got != 2 {
		t.Errorf("the server has %d instances stored", got)
	}
}

func TestAManagedInstanceThatIsLost(t *testing.T) {
	h, ids := newPoolHarness(t, 2)
	lost, client := ids[0], h.servers.ByID["a"].Kubernetes.CoreV1().Nodes()
	nodes, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	at := slices.IndexFunc(nodes.Items, hasProviderID(h.nstanceMachine(lost).Spec.ProviderID))
	require.NoError(t, client.Delete(t.Context(), nodes.Items[at].Name, metav1.DeleteOptions{}))
	h.eventually("its Machine is deleted", func() bool {
		return slices.ContainsFunc(h.CAPI.Changed, func(change string) bool { return strings.HasPrefix(change, "DELETE machines/"+lost+" ") })
	})
	if slices.ContainsFunc(h.CAPI.Changed, func(change string) bool { return !strings.HasPrefix(change, "DELETE machines/"+lost+" ") }) {
		t.Errorf("Cluster API got %q", h.CAPI.Changed)
	}
	h.eventually("it is replaced", func() bool {
		now := h.listed()
		return len(now) == 2 && slices.Contains(now, ids[1]) && !slices.Contains(now, lost)
	})
	h.delete(lost)
	h.eventually("it is deleted", func() bool { return h.nstanceMachine(lost) == nil })
	if calls := h.servers.ByID["a"].Calls("DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d deletions", len(calls))
	}
}
