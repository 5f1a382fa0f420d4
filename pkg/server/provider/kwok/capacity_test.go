// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
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
	want = strings.ReplaceAll(want, "ID", spec.ID)
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

// rejectSubnet makes the API server reject the Nodes of a subnet.
func rejectSubnet(client *fake.Clientset, subnet string, err error) {
	client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		node := action.(clienttesting.CreateAction).GetObject().(*corev1.Node)
		return node.Labels[kwok.LabelSubnet] == subnet, nil, err
	})
}

// expectFailure expects that one failure was reported.
func expectFailure(t *testing.T, p *providertest.Harness, id, text string) {
	t.Helper()
	for _, err := range p.ExpectFailures(1, group, id) {
		assert.EqualError(t, err, text)
	}
}

// TestARejectedRequestIsGivenUp, so that a request can follow that has the corrected
// configuration, and is not repeated all the time.
func TestARejectedRequestIsGivenUp(t *testing.T) {
	for _, rejection := range []error{
		apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), "name", nil),
		apierrors.NewForbidden(corev1.Resource("nodes"), "name", nil),
		apierrors.NewBadRequest("invalid Node"),
		apierrors.NewRequestEntityTooLargeError("too large"),
	} {
		t.Run(string(apierrors.ReasonForError(rejection)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, other := kwoktest.NewClientset(), spec()
				rejectSubnet(client, "a b", rejection)
				p := start(t, client, "a")
				spec := provider.Spec{ID: providertest.NewID(t), Group: group, Type: instanceTypes["m7i.large"], Subnet: "a b"}
				require.NoError(t, p.Create(t.Context(), spec))
				p.Await(group, map[string]instance.State{spec.ID: providertest.Deleted})
				text := "create Node " + spec.ID + ": " + rejection.Error()
				expectFailure(t, p, spec.ID, text)

				// A repeated request makes no call, even for another instance. It
				// does not affect other requests.
				calls(client)
				again := spec
				for range 2 {
					if err := p.Create(t.Context(), again); err == nil || err.Error() != "was rejected before: "+text {
						t.Errorf("the repeated request gets %v, want %s", err, text)
					}
					again.ID = providertest.NewID(t)
				}
				p.MustRun(other)
				if got := calls(client); got["create"] != 1 {
					t.Errorf("there were calls %v, want those for the other instance", got)
				}
				// After a while it may be requested again, and be rejected again.
				require.NoError(t, p.Create(t.Context(), spec))
				p.Await(group, map[string]instance.State{spec.ID: providertest.Deleted})
				expectFailure(t, p, spec.ID, text)
				// A corrected request need not wait.
				spec.Subnet = "subnet-a"
				require.NoError(t, p.Create(t.Context(), spec))
				p.Await(group, map[string]instance.State{spec.ID: instance.Running})
				p.ExpectFailures(0, group, spec.ID)
			})
		})
	}
}

// TestDeletionDuringARejection: the instance is deleted while its creation is
// rejected.
func TestDeletionDuringARejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			node := action.(clienttesting.CreateAction).GetObject().(*corev1.Node)
			p.MustDelete(node.Name)
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), node.Name, nil)
		})
		id := p.MustCreate(spec())
		p.Await(group, map[string]instance.State{id: providertest.Deleted})
		if got := calls(client); got["get"] != 1 || got["delete"] != 0 {
			t.Errorf("there were calls %v, want one that finds no Node to delete", got)
		}
	})
}

// TestARejectedDeletionIsRepeated: the instance exists, so the request is not given
// up.
func TestARejectedDeletionIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		id := p.MustRun(spec())
		rejections := 3
		client.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if rejections == 0 {
				return false, nil, nil
			}
			rejections--
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), id, nil)
		})
		p.MustDelete(id)
		p.Await(group, map[string]instance.State{id: providertest.Deleted})
		if rejections != 0 {
			t.Errorf("was deleted after %d rejections too few", rejections)
		}
	})
}

// TestAQuotaOfAMarket counts the instances of its market only, pending and running, also after a
// restart and with arguments that name no market. A higher quota of a new configuration counts at once.
func TestAQuotaOfAMarket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		h := start(t, client, "a")
		inMarket := func(market string, quotas map[string]int32) provider.Spec {
			s := spec()
			s.Type.MarketQuotas = quotas
			if market != "" {
				s.Args = map[string]any{"market": market}
			}
			return s
		}
		quotas := map[string]int32{"Spot": 1, "Standard": 2}
		expectFull := func() {
			t.Helper()
			const noSpot = "out of capacity: quota of 1 m7i.large/Spot instances is used up"
			expectRejected(t, h, inMarket("Spot", quotas), noSpot)
			require.EqualError(t, h.Provider.(provider.CapacityChecker).CheckCapacity(inMarket("Spot", quotas)), noSpot)
			expectRejected(t, h, inMarket("", quotas), "out of capacity: quota of 2 m7i.large/Standard instances is used up")
		}
		pending, standard, named := h.MustCreate(inMarket("Spot", quotas)), h.MustCreate(inMarket("", quotas)), h.MustCreate(inMarket("Standard", quotas))
		expectFull()
		h.Await(group, map[string]instance.State{pending: instance.Running, standard: instance.Running, named: instance.Running})
		expectFull()
		h.Stop()
		h = start(t, client, "a")
		expectFull()
		node, err := client.CoreV1().Nodes().Get(t.Context(), pending, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, "Spot", node.Labels[kwok.LabelMarket])

		h.MustRun(inMarket("Spot", map[string]int32{"Spot": 2}))
		h.MustDelete(pending)
		h.MustRun(inMarket("Spot", map[string]int32{"Spot": 2}))
		expectRejected(t, h, inMarket("Elsewhere", nil), `create instance ID: arguments of the provider: args.market: Unsupported value: "Elsewhere": supported values: "Spot", "Standard"`)
	})
}

// TestARejectionOfAMarket of the API server does not concern other markets.
func TestARejectionOfAMarket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			node := action.(clienttesting.CreateAction).GetObject().(*corev1.Node)
			return node.Labels[kwok.LabelMarket] == "Spot", nil, apierrors.NewForbidden(corev1.Resource("nodes"), node.Name, nil)
		})
		h := start(t, client, "a")
		spot := spec()
		spot.Args = map[string]any{"market": "Spot"}
		spot.ID = h.MustCreate(spot)
		h.Await(group, map[string]instance.State{spot.ID: providertest.Deleted})
		require.ErrorContains(t, h.Create(t.Context(), spot), "was rejected before")
		h.MustRun(spec())
	})
}
