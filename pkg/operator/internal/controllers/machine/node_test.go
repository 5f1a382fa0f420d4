// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

const linkM = `PATCH machines/m/status {"metadata":{"resourceVersion":"7","uid":"uid-of-machine-m"},"status":{"nodeRef":{"name":"n"}}}`

func TestTheNodeOfAnInstance(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.addNode(newNode("other", "aws:///us-west-2a/provider-i-2"))
	h.Expect()
	// With one Node the provider id is written as the Node has it.
	h.addNode(newNode("n", "aws:///us-west-2a/provider-i-1"))
	if requeue := h.Expect(applyM, applyStatusM); requeue != 30*time.Second {
		t.Errorf("syncs again in %s", requeue)
	}
	got := h.nstanceMachine("m")
	if got.Spec.ProviderID != "aws:///us-west-2a/provider-i-1" || got.Status.ProviderID != "provider-i-1" || !hasFinalizer(got) ||
		got.Status.ObservedGeneration != got.Generation {
		t.Errorf("the NstanceMachine is %+v, %+v", got.Spec, got.Status)
	}
	if want := []v1beta1.MachineAddress{{Type: "InternalIP", Address: "10.0.0.1"}, {Type: "Hostname", Address: "n"}}; !slices.Equal(got.Status.Addresses, want) {
		t.Errorf("the addresses are %v, want %v", got.Status.Addresses, want)
	}
	// With two Nodes, or without a Node, nothing changes.
	h.addNode(newNode("n2", "aws:///us-west-2b/provider-i-1"))
	h.Expect()
	h.Expect()
	if got, want := h.Events(), []string{`Warning AmbiguousProviderID provider id "provider-i-1" matches 2 Nodes`}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	require.NoError(t, h.Informers.Nodes.GetIndexer().Replace(nil, "9"))
	h.Expect()
}

// Otherwise a Node could make every write of the status fail.
func TestAddressesAreWithinTheLimits(t *testing.T) {
	node := &corev1.Node{}
	for range maxAddresses + 1 {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"})
	}
	if got := addressesOf(node); len(got) != maxAddresses {
		t.Errorf("%d addresses, want %d", len(got), maxAddresses)
	}
}

func TestWantedProviderID(t *testing.T) {
	first, second := newNode("one", "aws:///us-west-2a/i-1"), newNode("two", "aws:///us-west-2b/i-1")
	for name, test := range map[string]struct {
		current, reported string
		nodes             int
		want              string
	}{
		"nothing is known":                      {"", "", 0, ""},
		"the shard's":                           {"", "i-1", 0, "i-1"},
		"the Node's":                            {"i-1", "i-1", 1, "aws:///us-west-2a/i-1"},
		"the Node's at once":                    {"", "i-1", 1, "aws:///us-west-2a/i-1"},
		"two Nodes":                             {"", "i-1", 2, ""},
		"two Nodes where one was before":        {"aws:///us-west-2a/i-1", "i-1", 2, "aws:///us-west-2a/i-1"},
		"the Node was deleted":                  {"aws:///us-west-2a/i-1", "i-1", 0, "aws:///us-west-2a/i-1"},
		"a client wrote another":                {"i-9", "i-1", 0, "i-1"},
		"a client wrote the id of another Node": {"aws:///us-west-2c/i-1", "i-1", 1, "aws:///us-west-2a/i-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := wantedProviderID(test.current, test.reported, []*corev1.Node{first, second}[:test.nodes], ""); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Cluster API would set, and later drain and delete, the Node whose provider id is written.
func TestNodeOfAnotherShardIsNotUsed(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), running(newNstanceMachine("m"), "i-1"))
	node := newNode("n", "aws:///us-west-2a/provider-i-1")
	node.Labels = map[string]string{v1beta1.LabelShard: "b"}
	h.addNode(node)
	before := h.nstanceMachine("m").Spec.ProviderID
	for range 3 {
		_, requeue, err := h.Sync()
		require.NoError(t, err)
		assert.Equal(t, controllers.ForeignRecheck, requeue)
		h.Advance(requeue)
	}
	assert.Equal(t, before, h.nstanceMachine("m").Spec.ProviderID)
	assert.Empty(t, h.nstanceMachine("m").Status.Addresses)
	assert.Equal(t, []string{`Warning NodeOfOtherShard shard a reports the provider id "aws:///us-west-2a/provider-i-1" of Node n, ` +
		`which has the label nstance.dev/shard=b: the provider id is not used`}, h.Events())

	own := node.DeepCopy()
	own.Labels[v1beta1.LabelShard] = "a"
	h.addNode(own)
	_, _, err := h.Sync()
	require.NoError(t, err)
	assert.Equal(t, own.Spec.ProviderID, h.nstanceMachine("m").Spec.ProviderID)
}

func TestTheNodeIsSetWhenClusterAPIDoesNotFindIt(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.addNode(newNode("n", "provider-i-1"))
	h.Expect(applyStatusM)
	h.Advance(29 * time.Second)
	if requeue := h.Expect(); requeue != time.Second {
		t.Errorf("syncs again in %s", requeue)
	}
	h.Advance(time.Second)
	h.Expect(linkM)

	t.Run("Cluster API has found it", func(*testing.T) {
		owner := newMachine("m")
		owner.Status.NodeRef = clusterv1.MachineNodeReference{Name: "another"}
		h.Put(h.Informers.Machines, owner)
		h.Expect()
	})
	t.Run("Cluster API writes at the same time", func(t *testing.T) {
		h.Put(h.Informers.Machines, newMachine("m"))
		h.Expect()
		h.Advance(30 * time.Second)
		h.CAPI.Refused = apierrors.NewConflict(schema.GroupResource{}, "m", nil)
		if _, requeue, err := h.Sync(); err != nil || requeue != 30*time.Second {
			t.Errorf("syncs again in %s, error %v; want the same time again", requeue, err)
		}
		h.CAPI.Refused = nil
	})
	t.Run("the Machine is being deleted", func(*testing.T) {
		owner := newMachine("m")
		owner.DeletionTimestamp = &metav1.Time{Time: h.FakeClock.Now()}
		h.Put(h.Informers.Machines, owner)
		h.Expect()
	})
	t.Run("the time begins again with another Node", func(t *testing.T) {
		h.Put(h.Informers.Machines, newMachine("m"))
		h.Expect()
		h.Advance(20 * time.Second)
		again := newNode("n", "provider-i-1")
		again.UID = "another"
		h.addNode(again)
		if requeue := h.Expect(); requeue != 30*time.Second {
			t.Errorf("syncs again in %s", requeue)
		}
	})
}
