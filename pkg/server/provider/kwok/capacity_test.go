// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// expectRejected requests an instance and expects an error.
func expectRejected(t *testing.T, p *providertest.Harness, spec provider.Spec, want string) {
	t.Helper()
	spec.ID = providertest.NewID(t)
	if err := p.Create(t.Context(), spec); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// withQuota returns a request for a type with a quota.
func withQuota(quota int32) provider.Spec {
	s := spec()
	s.Type.Quota = ptr.To(quota)
	return s
}

// editNode changes the Node of an instance.
func editNode(t *testing.T, client *fake.Clientset, id string, edit func(*corev1.Node)) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
	require.NoError(t, err)
	edit(node)
	_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	synctest.Wait()
}

// TestASubnetWithTooManyNodes: its capacity may have been higher.
func TestASubnetWithTooManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		var ids []string
		for range 3 {
			id := p.MustRun(spec())
			editNode(t, client, id, func(node *corev1.Node) { node.Labels[kwok.LabelSubnet] = "small" })
			ids = append(ids, id)
		}
		expect := func(want int) {
			t.Helper()
			if got, err := p.Capacity(t.Context(), "small"); err != nil || got != want {
				t.Errorf("there is room for %d, %v, want %d", got, err, want)
			}
		}
		expect(0)
		full := spec()
		full.Subnet = "small"
		expectRejected(t, p, full, "out of capacity: no room for more than 2 instances in subnet small")
		p.MustDelete(ids[0])
		expect(0)
		p.MustDelete(ids[1])
		expect(1)
		p.Await(group, map[string]instance.State{ids[0]: providertest.Deleted, ids[1]: providertest.Deleted})
		expect(1)
	})
}

// TestANodeThatIsBeingDeletedMakesRoom, whichever client deletes it.
func TestANodeThatIsBeingDeletedMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		id := p.MustRun(spec())
		expectRejected(t, p, withQuota(1), "out of capacity: quota of 1 m7i.large instances is used up")
		editNode(t, client, id, func(node *corev1.Node) { node.DeletionTimestamp = ptr.To(metav1.Now()) })
		p.Await(group, map[string]instance.State{id: instance.Terminating})
		p.MustCreate(withQuota(1))
	})
}
