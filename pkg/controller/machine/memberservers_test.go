// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// members are a harness whose machines stand for the managed instances of shard a,
// of a pool on that shard.
type members struct {
	*harness

	servers *servers
}

// newMembers makes a pool of as many instances as size, which run.
func newMembers(t *testing.T, size int32) (m *members, ids []string) {
	t.Helper()
	s := startServers(t, "a")
	m = &members{realHarness(t, s), s}
	m.notices, m.realClock = s.instances, clock.RealClock{}
	m.restart(s)
	m.addPool(size, size, 0)
	m.upsert(size)
	m.until("the instances are listed", func() bool { ids = m.listed(); return len(ids) == int(size) })
	for _, id := range ids {
		m.add(id)
	}
	m.until("all run", func() bool {
		return !slices.ContainsFunc(ids, func(id string) bool { return told(m.machine(id), v1beta1.ConditionReady) != "True Ready: " })
	})
	return m, ids
}

// add has an instance be a member that a Machine owns.
func (m *members) add(id string) {
	m.t.Helper()
	if err := m.Tracker().Add(owned(newMember(id))); err != nil {
		m.t.Fatal(err)
	}
	m.put(m.owners, newOwner(id))
}

// upsert tells the shard what the pool wants.
func (m *members) upsert(size int32, removeFirst ...string) {
	m.t.Helper()
	if _, err := m.servers.UpsertGroup(m.t.Context(), "a", "workers", shard.GroupConfig{Size: size, RemoveFirst: removeFirst}); err != nil {
		m.t.Fatal(err)
	}
}

// listed are the ids of the instances that the shard lists and does not end.
func (m *members) listed() []string {
	group, _ := m.groups.Get("a", "workers")
	var ids []string
	for _, instance := range group.Instances {
		if instance.State != shard.InstanceTerminating {
			ids = append(ids, instance.ID)
		}
	}
	return ids
}

// until syncs all machines until a condition is met.
func (m *members) until(what string, condition func() bool) {
	m.t.Helper()
	m.servers.until(what, func() bool {
		m.Show(m.informers)
		for _, key := range m.informers.NstanceMachines().Informer().GetStore().ListKeys() {
			name, err := cache.ParseObjectName(key)
			if err != nil {
				m.t.Fatal(err)
			}
			if _, err := m.controller.sync(m.ctx, name); err != nil {
				m.t.Error(err)
			}
		}
		return condition()
	})
}

// delete deletes a machine as Cluster API does when its Node is drained.
func (m *members) delete(id string) {
	m.t.Helper()
	if err := m.controller.machines.Delete(m.t.Context(), id, metav1.DeleteOptions{}); err != nil {
		m.t.Fatal(err)
	}
}

func hasProviderID(id string) func(corev1.Node) bool {
	return func(node corev1.Node) bool { return node.Spec.ProviderID == id }
}

func TestManagedInstancesRunWithoutACall(t *testing.T) {
	m, ids := newMembers(t, 3)
	server := m.servers.byID["a"]
	if calls := server.Calls("GetInstanceStatus", "CreateInstance", "DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d calls", len(calls))
	}
	nodes, err := server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if machine := m.machine(id); machine.Spec.ProviderID == "" || !slices.ContainsFunc(nodes.Items, hasProviderID(machine.Spec.ProviderID)) {
			t.Errorf("member %s has provider id %q", id, machine.Spec.ProviderID)
		}
	}
}

func TestAManagedInstanceIsReplaced(t *testing.T) {
	m, ids := newMembers(t, 2)
	m.delete(ids[0])
	m.until("it is gone", func() bool { return m.machine(ids[0]) == nil })
	m.until("it is replaced", func() bool {
		now := m.listed()
		return len(now) == 2 && slices.Contains(now, ids[1]) && !slices.Contains(now, ids[0])
	})
}

// The machine is deleted before the pool and the shard know that there are to be
// fewer. It waits for both: otherwise another instance would go in the end.
func TestAManagedInstanceThatWasChosenIsNotReplaced(t *testing.T) {
	m, ids := newMembers(t, 3)
	victim := ids[1]
	m.scale(2)
	m.delete(victim)
	ready := func() string { return told(m.machine(victim), v1beta1.ConditionReady) }
	m.until("it waits for the pool", func() bool { return strings.Contains(ready(), "it is being chosen which of 3 go") })
	m.put(m.machinePools, newMachinePool(2))
	m.size(2, victim)
	m.until("it waits for the shard", func() bool { return strings.Contains(ready(), telling) })
	if calls := m.servers.byID["a"].Calls("DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d deletions", len(calls))
	}
	m.upsert(2, victim)
	m.until("it is gone", func() bool { return m.machine(victim) == nil })
	left := []string{ids[0], ids[2]}
	m.until("the others stay", func() bool { return slices.Equal(m.listed(), left) })
	if made := m.servers.stored(); made != 2 {
		t.Errorf("the server has %d instances on record", made)
	}
}

func TestAManagedInstanceThatIsLost(t *testing.T) {
	m, ids := newMembers(t, 2)
	lost, client := ids[0], m.servers.byID["a"].Kubernetes.CoreV1().Nodes()
	nodes, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(nodes.Items, hasProviderID(m.machine(lost).Spec.ProviderID))
	if err := client.Delete(t.Context(), nodes.Items[at].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.until("its Machine is deleted", func() bool {
		return slices.ContainsFunc(m.capi.Changed, func(change string) bool { return strings.HasPrefix(change, "DELETE machines/"+lost+" ") })
	})
	if slices.ContainsFunc(m.capi.Changed, func(change string) bool { return !strings.HasPrefix(change, "DELETE machines/"+lost+" ") }) {
		t.Errorf("Cluster API was told %q", m.capi.Changed)
	}
	m.until("it is replaced", func() bool {
		now := m.listed()
		return len(now) == 2 && slices.Contains(now, ids[1]) && !slices.Contains(now, lost)
	})
	m.delete(lost)
	m.until("it is gone", func() bool { return m.machine(lost) == nil })
	if calls := m.servers.byID["a"].Calls("DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d deletions", len(calls))
	}
}
