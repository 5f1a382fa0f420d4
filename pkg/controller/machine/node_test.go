// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

const linkM = `PATCH machines/m/status {"metadata":{"resourceVersion":"7","uid":"uid-of-owner-m"},"status":{"nodeRef":{"name":"n"}}}`

func TestTheNodeOfAnInstance(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
	h.addNode(newNode("other", "aws:///us-west-2a/provider-i-2"))
	h.expect()
	// It stays what it is as soon as there is one Node, spelled as the Node does.
	h.addNode(newNode("n", "aws:///us-west-2a/provider-i-1"))
	if requeue := h.expect(applyMachineM, applyStatusM); requeue != 30*time.Second {
		t.Errorf("looks again in %s", requeue)
	}
	got := h.machine("m")
	if got.Spec.ProviderID != "aws:///us-west-2a/provider-i-1" || got.Status.ProviderID != "provider-i-1" || !held(got) ||
		got.Status.ObservedGeneration != got.Generation {
		t.Errorf("the machine is %+v, %+v", got.Spec, got.Status)
	}
	if want := []v1beta1.MachineAddress{{Type: "InternalIP", Address: "10.0.0.1"}, {Type: "Hostname", Address: "n"}}; !slices.Equal(got.Status.Addresses, want) {
		t.Errorf("the addresses are %v, want %v", got.Status.Addresses, want)
	}
	// A second Node changes nothing, and neither does none.
	h.addNode(newNode("n2", "aws:///us-west-2b/provider-i-1"))
	h.expect()
	h.expect()
	if got, want := h.events(), []string{`Warning AmbiguousProviderID provider id "provider-i-1" matches 2 Nodes`}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	if err := h.nodes.GetIndexer().Replace(nil, "9"); err != nil {
		t.Fatal(err)
	}
	h.expect()
}

func TestWrittenProviderID(t *testing.T) {
	one, two := newNode("one", "aws:///us-west-2a/i-1"), newNode("two", "aws:///us-west-2b/i-1")
	for name, test := range map[string]struct {
		before, told string
		nodes        int
		want         string
	}{
		"nothing is known":                 {"", "", 0, ""},
		"the shard's":                      {"", "i-1", 0, "i-1"},
		"the Node's":                       {"i-1", "i-1", 1, "aws:///us-west-2a/i-1"},
		"the Node's at once":               {"", "i-1", 1, "aws:///us-west-2a/i-1"},
		"it is not clear which":            {"", "i-1", 2, ""},
		"it is not clear which any more":   {"aws:///us-west-2a/i-1", "i-1", 2, "aws:///us-west-2a/i-1"},
		"the Node is gone":                 {"aws:///us-west-2a/i-1", "i-1", 0, "aws:///us-west-2a/i-1"},
		"somebody else wrote another":      {"i-9", "i-1", 0, "i-1"},
		"somebody wrote another Node's id": {"aws:///us-west-2c/i-1", "i-1", 1, "aws:///us-west-2a/i-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := writtenProviderID(test.before, test.told, []*corev1.Node{one, two}[:test.nodes]); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTheMachineIsToldItsNodeWhenClusterAPIDoesNotFindIt(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
	h.addNode(newNode("n", "provider-i-1"))
	h.expect(applyStatusM)
	h.after(29 * time.Second)
	if requeue := h.expect(); requeue != time.Second {
		t.Errorf("looks again in %s", requeue)
	}
	h.after(time.Second)
	h.expect(linkM)

	t.Run("it has found it", func(*testing.T) {
		owner := newOwner("m")
		owner.Status.NodeRef = clusterv1.MachineNodeReference{Name: "another"}
		h.put(h.owners, owner)
		h.expect()
	})
	t.Run("it writes at the same time", func(t *testing.T) {
		h.put(h.owners, newOwner("m"))
		h.expect()
		h.after(30 * time.Second)
		h.capi.Refused = apierrors.NewConflict(schema.GroupResource{}, "m", nil)
		if _, requeue, err := h.sync(); err != nil || requeue != 30*time.Second {
			t.Errorf("looks again in %s, error %v; want it to give Cluster API as long again", requeue, err)
		}
		h.capi.Refused = nil
	})
	t.Run("the Machine goes", func(*testing.T) {
		owner := newOwner("m")
		owner.DeletionTimestamp = &metav1.Time{Time: h.clock.Now()}
		h.put(h.owners, owner)
		h.expect()
	})
	t.Run("another Node gets its own time", func(t *testing.T) {
		h.put(h.owners, newOwner("m"))
		h.expect()
		h.after(20 * time.Second)
		again := newNode("n", "provider-i-1")
		again.UID = "another"
		h.addNode(again)
		if requeue := h.expect(); requeue != 30*time.Second {
			t.Errorf("looks again in %s", requeue)
		}
	})
}
