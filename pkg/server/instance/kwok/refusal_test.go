// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok"
	"nstance.dev/operator/pkg/server/instance/kwok/kwoktest"
)

// refuseSubnet lets the API server refuse the Nodes of a subnet.
func refuseSubnet(client *fake.Clientset, subnet string, err error) {
	client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		node := action.(clienttesting.CreateAction).GetObject().(*corev1.Node)
		return node.Labels[kwok.LabelSubnet] == subnet, nil, err
	})
}

// TestARefusedOrderIsGivenUp, so that it can be ordered anew, as the
// configuration has it by then, and is not asked for all the time.
func TestARefusedOrderIsGivenUp(t *testing.T) {
	for _, refused := range []error{
		apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), "name", nil),
		apierrors.NewForbidden(corev1.Resource("nodes"), "name", nil),
		apierrors.NewBadRequest("it is no Node"),
		apierrors.NewRequestEntityTooLargeError("too large"),
	} {
		t.Run(string(apierrors.ReasonForError(refused)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := kwoktest.NewClientset()
				refuseSubnet(client, "a b", refused)
				p := start(t, client, "a")
				defer p.stop()
				spec := instance.Spec{ID: newID(t), Group: group, Type: p.types["m7i.large"], Subnet: "a b"}
				if err := p.Create(t.Context(), spec); err != nil {
					t.Fatal(err)
				}
				p.await(group, map[string]instance.State{spec.ID: gone})
				text := "creating Node " + spec.ID + ": " + refused.Error()
				p.expectFailures(1, spec.ID, text)

				// Who insists makes no call, be it for another instance, and an
				// order that is another is no worse for it.
				calls(client)
				again := spec
				for range 2 {
					if err := p.Create(t.Context(), again); err == nil || err.Error() != "was refused before: "+text {
						t.Errorf("ordered at once again it got %v, want %s", err, text)
					}
					again.ID = newID(t)
				}
				p.createRunning(group)
				if got := calls(client); got["create"] != 1 {
					t.Errorf("there were calls %v, want those of the other instance", got)
				}
				// By now it may be tried again, and be refused again.
				if err := p.Create(t.Context(), spec); err != nil {
					t.Fatal(err)
				}
				p.await(group, map[string]instance.State{spec.ID: gone})
				p.expectFailures(1, spec.ID, text)
				// Once corrected it need not wait.
				spec.Subnet = "subnet-a"
				if err := p.Create(t.Context(), spec); err != nil {
					t.Fatal(err)
				}
				p.await(group, map[string]instance.State{spec.ID: instance.Running})
				p.expectFailures(0, spec.ID, "")
			})
		})
	}
}

// TestARefusedOrderThatShallEnd while it is refused: the end is carried out.
func TestARefusedOrderThatShallEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			node := action.(clienttesting.CreateAction).GetObject().(*corev1.Node)
			p.delete(node.Name)
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), node.Name, nil)
		})
		id := p.create(group)
		p.await(group, map[string]instance.State{id: gone})
		if got := calls(client); got["delete"] != 1 {
			t.Errorf("there were calls %v, want a deletion", got)
		}
	})
}

// TestARefusedDeletionIsRepeated: what is there has to go.
func TestARefusedDeletionIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id := p.createRunning(group)
		refusals := 3
		client.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if refusals == 0 {
				return false, nil, nil
			}
			refusals--
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), id, nil)
		})
		p.delete(id)
		p.await(group, map[string]instance.State{id: gone})
		if refusals != 0 {
			t.Errorf("is gone after %d refusals too few", refusals)
		}
	})
}
