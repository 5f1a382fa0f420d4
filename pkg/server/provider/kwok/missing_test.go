// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// setLabel sets a label of a Node, or removes it.
func setLabel(t *testing.T, client *fake.Clientset, name, label, value string) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	node = node.DeepCopy()
	if value == "" {
		delete(node.Labels, label)
	} else {
		node.Labels[label] = value
	}
	_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	synctest.Wait()
}

// A Node that loses a label by which the shard lists its Nodes is not a deleted instance:
// its Pods still run.
func TestNodeThatLosesALabel(t *testing.T) {
	for _, label := range []string{kwok.LabelManaged, kwok.LabelClusterID, kwok.LabelShard} {
		t.Run(label, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := kwoktest.NewClientset()
				p := start(t, client, "a")
				id, other := p.MustRun(spec()), p.MustRun(spec())
				before, _ := p.Get(id)
				value := map[string]string{kwok.LabelManaged: "true", kwok.LabelClusterID: "test", kwok.LabelShard: "a"}[label]
				setLabel(t, client, id, label, "")
				<-time.After(10 * time.Minute)
				synctest.Wait()
				after, found := p.Get(id)
				assert.True(t, found)
				assert.Equal(t, before, after)
				assert.Equal(t, map[string]instance.State{id: instance.Running, other: instance.Running}, p.States(group))
				assert.Contains(t, p.Groups(), group)
				assert.Len(t, p.Failures, 1, "it is reported once")

				// The label returns, and the Node is deleted later.
				setLabel(t, client, id, label, value)
				p.DrainChanges()
				require.NoError(t, client.CoreV1().Nodes().Delete(t.Context(), id, metav1.DeleteOptions{}))
				synctest.Wait()
				assert.Equal(t, map[string]instance.State{other: instance.Running}, p.States(group))
				assert.NotEmpty(t, p.Changes)
			})
		})
	}
}

func TestNodeThatIsDeletedWithoutItsLabel(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, p *providertest.Harness, client *fake.Clientset, id string){
		"by the server": func(_ *testing.T, p *providertest.Harness, _ *fake.Clientset, id string) { p.MustDelete(id) },
		"by a user": func(t *testing.T, _ *providertest.Harness, client *fake.Clientset, id string) {
			require.NoError(t, client.CoreV1().Nodes().Delete(t.Context(), id, metav1.DeleteOptions{}))
		},
		"and created by another client": func(t *testing.T, _ *providertest.Harness, client *fake.Clientset, id string) {
			node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
			require.NoError(t, err)
			require.NoError(t, client.CoreV1().Nodes().Delete(t.Context(), id, metav1.DeleteOptions{}))
			again := node.DeepCopy()
			again.UID, again.ResourceVersion = "another", ""
			_, err = client.CoreV1().Nodes().Create(t.Context(), again, metav1.CreateOptions{})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := kwoktest.NewClientset()
				p := start(t, client, "a")
				id := p.MustRun(spec())
				setUID(t, client, id)
				setLabel(t, client, id, kwok.LabelShard, "")
				p.DrainChanges()
				end(t, p, client, id)
				<-time.After(3 * time.Minute)
				synctest.Wait()
				assert.Empty(t, p.States(group))
				assert.NotEmpty(t, p.Changes)
				_, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
				assert.Equal(t, name == "and created by another client", err == nil, "there is a Node: %v", err)
				calls(client)
				<-time.After(time.Hour)
				synctest.Wait()
				assert.Empty(t, calls(client), "calls for an instance that was deleted")
			})
		})
	}
}

// setUID gives a Node a UID, which the fake clientset does not.
func setUID(t *testing.T, client *fake.Clientset, name string) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	node = node.DeepCopy()
	node.UID = "the first"
	_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	synctest.Wait()
}

// A server that starts knows the instances of its records only by name.
func TestExpectedInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		first := start(t, client, "a")
		id, deleted, requested := first.MustRun(spec()), providertest.NewID(t), providertest.NewID(t)
		vm, _ := first.Get(id)
		setLabel(t, client, id, kwok.LabelShard, "")

		p := start(t, client, "a")
		foreign := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: providertest.NewID(t)}, Spec: corev1.NodeSpec{ProviderID: "kwok:///another"}}
		_, err := client.CoreV1().Nodes().Create(t.Context(), foreign, metav1.CreateOptions{})
		require.NoError(t, err)
		_, found := p.Get(id)
		require.False(t, found, "a list by labels does not have it")
		p.Provider.(provider.Expecter).Expect([]instance.VM{
			{ID: id, ProviderID: vm.ProviderID, Group: group},
			{ID: deleted, ProviderID: "kwok:///zone-of-a/" + deleted, Group: group},
			{ID: foreign.Name, ProviderID: "kwok:///zone-of-a/" + foreign.Name, Group: group},
			{ID: requested, Group: group},
		})
		// Nothing counts as missing before it is known.
		assert.Len(t, p.States(group), 3)
		synctest.Wait()
		assert.Equal(t, map[string]instance.State{id: instance.Running}, p.States(group))
		expected, _ := p.Get(id)
		assert.Equal(t, vm.ProviderID, expected.ProviderID)
		assert.False(t, expected.Expected)

		p.MustDelete(id)
		<-time.After(3 * time.Minute)
		synctest.Wait()
		assert.Empty(t, p.States(group))
		_, err = client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err), "%v", err)
		_, err = client.CoreV1().Nodes().Get(t.Context(), foreign.Name, metav1.GetOptions{})
		assert.NoError(t, err)
	})
}

// TestADeletedNodeThatTheWatchDidNotShow delays the watch while a Node is created
// and deleted. The instance must not be listed as running at any time: its group
// would seem to have one too many.
func TestADeletedNodeThatTheWatchDidNotShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		delayed := watch.NewRaceFreeFake()
		client.PrependWatchReactor("nodes", clienttesting.DefaultWatchReactor(delayed, nil))
		p := start(t, client, "a")
		var node *corev1.Node
		client.PrependReactor("delete", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			obj, err := client.Tracker().Get(action.GetResource(), "", action.(clienttesting.DeleteAction).GetName())
			if err == nil {
				node = obj.(*corev1.Node)
			}
			return false, nil, nil
		})
		id := p.MustCreate(spec())
		<-time.After(bootDelay)
		synctest.Wait()
		p.MustDelete(id)
		synctest.Wait()
		if node == nil {
			t.Fatal("the Node did not exist when it was deleted")
		}
		// The second request must not find out that there is no Node, and be done.
		p.MustDelete(id)
		synctest.Wait()
		delayed.Add(node)
		synctest.Wait()
		if states := p.States(group); len(states) != 1 || states[id] != instance.Terminating {
			t.Errorf("when the watch shows the Node the instances are %v, want one that is terminating", states)
		}
		delayed.Delete(node)
		p.Await(group, map[string]instance.State{id: providertest.Deleted})

		// The instance is deleted even if the watch misses both events.
		id = p.MustCreate(spec())
		<-time.After(bootDelay)
		synctest.Wait()
		p.MustDelete(id)
		p.Await(group, map[string]instance.State{id: providertest.Deleted})
	})
}
