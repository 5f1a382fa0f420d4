// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestAnInstanceRunsAfterTheBootDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		requested := time.Now()
		id := providertest.NewID(t)
		spec := provider.Spec{
			ID: id, Group: group, Template: "worker", Kind: "knd", CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 7, time.FixedZone("", 3600)),
			Type: instanceTypes["m7i.large"], Subnet: "subnet-a", Userdata: []byte("a secret"),
			Args: map[string]any{
				"labels":      map[string]any{"pool": "gold", "nstance.dev/group": "other", "nstance.dev/on-demand": "true", "kubernetes.io/os": "windows"},
				"annotations": map[string]any{"example.com/owner": "us", "nstance.dev/kind": "abc", "nstance.dev/infra-config-hash": "abc"},
			},
		}
		require.NoError(t, p.Create(t.Context(), spec))
		if vm, _ := p.Get(id); !vm.Equal(instance.VM{ID: id, Group: group, State: instance.Pending}) {
			t.Errorf("before the boot delay the instance is %v", vm)
		}
		p.Await(group, map[string]instance.State{id: instance.Running})
		if took := time.Since(requested); took != bootDelay {
			t.Errorf("took %v to boot, want %v", took, bootDelay)
		}
		if vm, _ := p.Get(id); vm.ProviderID != "kwok:///zone-of-a/"+id {
			t.Errorf("the instance is %v", vm)
		}

		node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
		require.NoError(t, err)
		resources := corev1.ResourceList{
			"cpu": resource.MustParse("2"), "memory": resource.MustParse("8Gi"),
			"ephemeral-storage": resource.MustParse("100Gi"), "pods": resource.MustParse("110"),
		}
		// Arguments do not replace own labels, and the Node does not have the userdata.
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

func TestDeletingAPendingInstanceKeepsItsNodeFromAppearing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		id, other := p.MustCreate(spec()), p.MustCreate(spec())
		p.MustDelete(id)
		p.Await(group, map[string]instance.State{id: providertest.Deleted, other: instance.Pending})
		p.Await(group, map[string]instance.State{id: providertest.Deleted, other: instance.Running})
		if got := calls(client); got["create"] != 1 {
			t.Errorf("made calls %v, want one Node, that of the other instance", got)
		}
	})
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
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unlabelled"}}, unmanaged)
		a, b := start(t, client, "a"), start(t, client, "b")
		if states := a.States(group); len(states) != 0 {
			t.Errorf("has instances %v", states)
		}
		id := b.MustRun(spec())
		_, err := client.CoreV1().Nodes().Create(t.Context(), foreign("late", "other", "a"), metav1.CreateOptions{})
		require.NoError(t, err)
		for _, name := range []string{"other-shard", "other-cluster", "unlabelled", "unmanaged", "late", id} {
			a.MustDelete(name)
		}
		synctest.Wait()
		if states := a.States(group); len(states) != 0 || len(a.Changes) != 0 {
			t.Errorf("has instances %v and %d changes were reported", states, len(a.Changes))
		}
		if got := calls(client); got["delete"] != 0 {
			t.Errorf("it deleted Nodes of others: %v", got)
		}
	})
}

// TestIdle sends heartbeats of a Node for an hour: the provider reports nothing and
// makes no calls.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		id := p.MustRun(spec())
		p.DrainChanges()
		calls(client)
		for range 60 {
			<-time.After(time.Minute)
			node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
			require.NoError(t, err)
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
			_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
			require.NoError(t, err)
		}
		synctest.Wait()
		if len(p.Changes) != 0 {
			t.Errorf("%d changes were reported", len(p.Changes))
		}
		if got := calls(client); !maps.Equal(got, map[string]int{"get": 60, "update": 60}) {
			t.Errorf("there were calls %v, want those of the heartbeat alone", got)
		}
	})
}

// TestIDOfAForeignNode creates an instance with the id of a Node of another shard, which
// clients can choose. The request is given up, and its deletion deletes nothing.
func TestIDOfAForeignNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		a, b := start(t, client, "a"), start(t, client, "b")
		id := b.MustRun(spec())
		foreign := spec()
		foreign.ID = id
		require.NoError(t, a.Create(t.Context(), foreign))
		time.Sleep(time.Minute)
		assert.Empty(t, a.States(group))
		// It is deleted before the first attempt to create it.
		require.NoError(t, a.Create(t.Context(), foreign))
		a.MustDelete(id)
		time.Sleep(time.Minute)
		assert.NotEmpty(t, a.Failures, "the client gets the reason")
		assert.Zero(t, calls(client)["delete"], "Nodes of others were deleted")
		assert.Equal(t, map[string]instance.State{id: instance.Running}, b.States(group))
	})
}

// TestIDOfANodeOfAnotherGroup: the watch does not show the Node of another group yet, of
// another tenant for example. It is no result of the request, and is not deleted.
func TestIDOfANodeOfAnotherGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		client.PrependWatchReactor("nodes", clienttesting.DefaultWatchReactor(watch.NewRaceFreeFake(), nil))
		p := start(t, client, "a")
		wanted := spec()
		wanted.ID = providertest.NewID(t)
		node := p.Provider.(*kwok.Provider).ExpectedNode(wanted)
		node.Name, node.Labels[kwok.LabelTenant] = wanted.ID, "other"
		_, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, p.Create(t.Context(), wanted))
		time.Sleep(time.Minute)
		assert.Empty(t, p.States(group))
		assert.NotEmpty(t, p.Failures, "the client gets the reason")
		// It is deleted before the first attempt to create it.
		require.NoError(t, p.Create(t.Context(), wanted))
		p.MustDelete(wanted.ID)
		time.Sleep(time.Minute)
		assert.Zero(t, calls(client)["delete"], "the Node of the other group was deleted")
	})
}

// setStatus sets the status that a cloud would report for a machine.
func setStatus(t *testing.T, client *fake.Clientset, id, status string, terminating bool) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
	require.NoError(t, err)
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, kwok.AnnotationProviderStatus, status)
	if terminating {
		// As with a finalizer.
		now := metav1.Now()
		node.DeletionTimestamp = &now
	}
	_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func TestProviderStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		id := p.MustRun(spec())
		for _, tc := range []struct {
			status string
			want   instance.State
		}{
			{"stopped", instance.Stopped},
			{"failed", instance.Failed},
			{"impaired", instance.Impaired},
			{"fine", instance.Running},
			{"stopped", instance.Stopped},
			{"", instance.Running},
		} {
			p.DrainChanges()
			setStatus(t, client, id, tc.status, false)
			synctest.Wait()
			if vm, known := p.Get(id); !known || vm.State != tc.want {
				t.Errorf("with status %q it is %v, want %v", tc.status, vm.State, tc.want)
			}
			if reported := len(p.Changes); reported != 1 {
				t.Errorf("status %q was reported %d times, want once", tc.status, reported)
			}
		}

		// The status of an instance that is being deleted does not matter.
		setStatus(t, client, id, "impaired", true)
		p.Await(group, map[string]instance.State{id: instance.Terminating})
	})
}

// TestADeletedInstanceIsTerminating, with any status.
func TestADeletedInstanceIsTerminating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		id := p.MustRun(spec())
		setStatus(t, client, id, "stopped", false)
		p.Await(group, map[string]instance.State{id: instance.Stopped})
		p.MustDelete(id)
		if state, listed := p.States(group)[id]; listed && state != instance.Terminating {
			t.Errorf("right after its deletion it is %v", state)
		}
		p.Await(group, map[string]instance.State{id: providertest.Deleted})
	})
}
