// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

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
