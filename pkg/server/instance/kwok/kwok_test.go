// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok/kwoktest"
)

func TestAnInstanceRunsAfterTheBootDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		ordered := time.Now()
		id := newID(t)
		spec := instance.Spec{
			ID: id, Group: group, Template: "worker", Kind: "knd", CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 7, time.FixedZone("", 3600)),
			Type: p.types["m7i.large"], Subnet: "subnet-a", Userdata: []byte("a secret"),
			Args: map[string]any{
				"labels":      map[string]any{"pool": "gold", "nstance.dev/group": "other", "kubernetes.io/os": "windows"},
				"annotations": map[string]any{"example.com/owner": "us", "nstance.dev/kind": "abc"},
			},
		}
		if err := p.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		p.expectVM(instance.VM{ID: id, Group: group, State: instance.Pending})
		p.await(group, map[string]instance.State{id: instance.Running})
		if took := time.Since(ordered); took != bootDelay {
			t.Errorf("took %v to boot, want %v", took, bootDelay)
		}
		p.expectVM(instance.VM{ID: id, ProviderID: "kwok:///zone-of-a/" + id, Group: group, State: instance.Running})

		node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		resources := corev1.ResourceList{
			"cpu": resource.MustParse("2"), "memory": resource.MustParse("8Gi"),
			"ephemeral-storage": resource.MustParse("100Gi"), "pods": resource.MustParse("110"),
		}
		// Of the arguments what is ours stays ours, and nothing has the userdata.
		wantNode := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: id,
				Labels: map[string]string{
					"nstance.dev/managed": "true", "nstance.dev/cluster-id": "test", "nstance.dev/shard": "a",
					"nstance.dev/tenant": "default", "nstance.dev/group": "workers",
					"nstance.dev/instance-id": id, "nstance.dev/subnet": "subnet-a",
					"topology.kubernetes.io/region": "us-west-2", "topology.kubernetes.io/zone": "zone-of-a",
					"node.kubernetes.io/instance-type": "m7i.large", "kubernetes.io/arch": "amd64",
					"kubernetes.io/os": "linux", "kubernetes.io/hostname": id, "pool": "gold",
				},
				Annotations: map[string]string{
					"kwok.x-k8s.io/node": "fake", "nstance.dev/kind": "knd", "nstance.dev/template": "worker",
					"nstance.dev/created-at": "2026-02-03T03:05:06Z", "example.com/owner": "us",
				},
			},
			Spec: corev1.NodeSpec{ProviderID: "kwok:///zone-of-a/" + id},
			Status: corev1.NodeStatus{
				Capacity: resources, Allocatable: resources,
				NodeInfo: corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux", KubeletVersion: "v1.36.3"},
			},
		}
		node.TypeMeta, node.ManagedFields, node.ResourceVersion = metav1.TypeMeta{}, nil, ""
		if diff := cmp.Diff(wantNode, node); diff != "" {
			t.Errorf("Node (-want +got):\n%s", diff)
		}
	})
}

// expectVM expects one instance of the group, however it is asked for.
func (p *provider) expectVM(want instance.VM) {
	p.t.Helper()
	if diff := cmp.Diff([]instance.VM{want}, p.List(group)); diff != "" {
		p.t.Errorf("List (-want +got):\n%s", diff)
	}
	if got, known := p.Get(want.ID); !known || got != want {
		p.t.Errorf("Get returns %v, %t, want %v", got, known, want)
	}
	if groups := p.Groups(); !slices.Equal(groups, []instance.GroupKey{group}) {
		p.t.Errorf("Groups are %v", groups)
	}
}

// TestTheSameIDIsTheSameInstance: a server that does not know whether an order
// was heard gives it again.
func TestTheSameIDIsTheSameInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer func() { p.stop() }()
		spec := instance.Spec{ID: newID(t), Group: group, Type: p.limited(1)}
		again := func(state instance.State) {
			t.Helper()
			if err := p.Create(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			if states := p.states(group); len(states) != 1 || states[spec.ID] != state {
				t.Errorf("instances are %v, want one in state %v", states, state)
			}
		}
		again(instance.Pending)
		<-time.After(bootDelay / 2)
		again(instance.Pending)
		<-time.After(bootDelay / 2)
		synctest.Wait()
		again(instance.Running)
		p.stop()
		p = start(t, client, "a")
		again(instance.Running)
		p.delete(spec.ID)
		again(instance.Terminating)
		p.await(group, map[string]instance.State{spec.ID: gone})
		if _, known := p.Get(spec.ID); known || len(p.Groups()) != 0 {
			t.Errorf("one that is gone is known: %t, and its group: %v", known, p.Groups())
		}
		if got := calls(client); got["create"] != 1 {
			t.Errorf("made calls %v, want one Node", got)
		}
	})
}

func TestDeletingAPendingInstanceKeepsItsNodeFromAppearing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id, other := p.create(group), p.create(group)
		p.delete(id)
		if states := p.states(group); states[id] == instance.Pending {
			t.Errorf("still pending right after its deletion: %v", states)
		}
		p.await(group, map[string]instance.State{id: gone, other: instance.Pending})
		p.await(group, map[string]instance.State{id: gone, other: instance.Running})
		if got := calls(client); got["create"] != 1 {
			t.Errorf("made calls %v, want one Node, that of the other instance", got)
		}
	})
}

func TestDeletingARunningInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id, other := p.createRunning(group), p.createRunning(group)
		calls(client)
		p.delete(id)
		p.delete(id)
		if state, there := p.states(group)[id]; there && state != instance.Terminating {
			t.Errorf("right after its deletion it is %v", state)
		}
		p.await(group, map[string]instance.State{id: gone, other: instance.Running})
		p.delete(id)
		synctest.Wait()
		if got := calls(client); !maps.Equal(got, map[string]int{"delete": 1}) {
			t.Errorf("made calls %v, want one deletion", got)
		}
	})
}

func TestANodeDeletedBySomebody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id := p.createRunning(group)
		if err := client.CoreV1().Nodes().Delete(t.Context(), id, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		p.await(group, map[string]instance.State{id: gone})
	})
}

func TestANodeOnItsWayOutIsTerminating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id := p.createRunning(group)
		node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// As with a finalizer.
		now := metav1.Now()
		node.DeletionTimestamp = &now
		if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.await(group, map[string]instance.State{id: instance.Terminating})
	})
}

func TestARestartFindsTheInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		otherGroup := instance.GroupKey{Tenant: "other", Group: "workers"}
		p.createRunning(group)
		p.createRunning(group)
		p.createRunning(otherGroup)
		want := map[instance.GroupKey]map[string]instance.VM{group: byID(p.List(group)), otherGroup: byID(p.List(otherGroup))}
		p.stop()
		calls(client)

		p = start(t, client, "a")
		defer p.stop()
		for key, want := range want {
			if diff := cmp.Diff(want, byID(p.List(key))); diff != "" {
				t.Errorf("%s (-before +after):\n%s", key, diff)
			}
		}
		if groups := p.Groups(); len(groups) != 2 || !slices.Contains(groups, group) || !slices.Contains(groups, otherGroup) {
			t.Errorf("groups are %v", groups)
		}
		// Both groups are told of: one of them may be no group any more.
		told := map[instance.GroupKey]bool{}
		for len(p.changes) > 0 {
			told[<-p.changes] = true
		}
		if !told[group] || !told[otherGroup] {
			t.Errorf("was told of %v", told)
		}
		if got := calls(client); !maps.Equal(got, map[string]int{"list": 1, "watch": 1}) {
			t.Errorf("made calls %v, want a list and a watch", got)
		}
	})
}

func byID(instances []instance.VM) map[string]instance.VM {
	m := map[string]instance.VM{}
	for _, i := range instances {
		m[i.ID] = i
	}
	return m
}

func TestForeignNodesAreNotInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := func(name, cluster, shard string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				"nstance.dev/managed": "true", "nstance.dev/cluster-id": cluster, "nstance.dev/shard": shard,
				"nstance.dev/tenant": group.Tenant, "nstance.dev/group": group.Group,
			}}}
		}
		unmanaged := foreign("unmanaged", "test", "a")
		delete(unmanaged.Labels, "nstance.dev/managed")
		client := kwoktest.NewClientset(foreign("other-shard", "test", "b"), foreign("other-cluster", "other", "a"),
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "nobody's"}}, unmanaged)
		a, b := start(t, client, "a"), start(t, client, "b")
		defer a.stop()
		defer b.stop()
		if states := a.states(group); len(states) != 0 {
			t.Errorf("has instances %v", states)
		}
		id := b.createRunning(group)
		if _, err := client.CoreV1().Nodes().Create(t.Context(), foreign("late", "other", "a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"other-shard", "other-cluster", "nobody's", "unmanaged", "late", id} {
			a.delete(name)
		}
		synctest.Wait()
		if states := a.states(group); len(states) != 0 || len(a.changes) != 0 {
			t.Errorf("has instances %v and was told of %d changes", states, len(a.changes))
		}
		if got := calls(client); got["delete"] != 0 {
			t.Errorf("deleted what is not its own: %v", got)
		}
	})
}

// TestIdle lets Nodes beat for an hour: nothing follows from that.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id := p.createRunning(group)
		for len(p.changes) > 0 {
			<-p.changes
		}
		calls(client)
		for range 60 {
			<-time.After(time.Minute)
			node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
			if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(p.changes) != 0 {
			t.Errorf("was told of %d changes", len(p.changes))
		}
		if got := calls(client); !maps.Equal(got, map[string]int{"get": 60, "update": 60}) {
			t.Errorf("there were calls %v, want those of the heartbeat alone", got)
		}
	})
}
