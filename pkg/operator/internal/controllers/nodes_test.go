// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

func newNode(name, providerID string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{ProviderID: providerID}}
}

func TestNodesAreFoundByProviderID(t *testing.T) {
	h := controllertest.NewHarness(t, shardtest.New())
	nodes, err := controllers.NewNodes(&h.Dependencies)
	require.NoError(t, err)
	if _, err := controllers.NewNodes(&h.Dependencies); err != nil {
		t.Errorf("a second controller cannot share the indexes: %v", err)
	}
	for name, id := range map[string]string{
		"one": "aws:///us-west-2a/i-1", "two": "aws:///us-west-2b/i-1", "other": "aws:///us-west-2a/i-2", "none": "",
	} {
		h.Put(h.Informers.Nodes, newNode(name, id, nil))
	}
	for id, want := range map[string][]string{
		"i-1": {"one", "two"}, "us-west-2b/i-1": {"two"}, "aws:///us-west-2a/i-2": {"other"}, "i-3": nil, "": nil, "aws:///us-west-2a/": nil,
	} {
		var got []string
		for _, node := range nodes.WithProviderID(id) {
			got = append(got, node.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q finds %q, want %q", id, got, want)
		}
	}
}

// Shard a reports an instance, and shard b reports others. Shard c was removed.
func TestShardMayNameOnlyItsOwnNodes(t *testing.T) {
	const id = "aws:///us-west-2a/i-1"
	label := func(shard string) map[string]string { return map[string]string{v1beta1.LabelShard: shard} }
	group := func(shard string, ids ...string) any {
		group := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "group-" + shard}}
		group.Spec.Shard, group.Status.ProviderIDs = v1beta1.Identifier(shard), ids
		return group
	}
	onDemand := func(shard, id string, conditions ...metav1.Condition) any {
		machine := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "machine-" + shard}}
		machine.Status.Shard, machine.Status.ProviderID, machine.Status.Conditions = shard, id, conditions
		return machine
	}
	deleted := metav1.Condition{Type: v1beta1.ConditionServerDeleted, Status: metav1.ConditionTrue}
	for name, test := range map[string]struct {
		nodes   []*corev1.Node
		reports []any
		foreign string
	}{
		"no other report":                    {nodes: []*corev1.Node{newNode("n", id, nil)}, reports: []any{group("a", "i-1"), onDemand("a", "i-1"), group("b", "i-2")}},
		"no Node":                            {reports: []any{group("a", "i-1"), group("b", "i-2")}},
		"another zone":                       {nodes: []*corev1.Node{newNode("n", id, nil)}, reports: []any{group("b", "us-west-2b/i-1")}},
		"a shard that was removed":           {nodes: []*corev1.Node{newNode("n", id, nil)}, reports: []any{group("c", "i-1"), onDemand("c", "i-1")}},
		"its on-demand instance was deleted": {nodes: []*corev1.Node{newNode("n", id, nil)}, reports: []any{onDemand("b", "i-1", deleted)}},
		"two Nodes":                          {nodes: []*corev1.Node{newNode("n", id, nil), newNode("m", id, nil)}, reports: []any{group("b", "i-1")}},
		"the label decides":                  {nodes: []*corev1.Node{newNode("n", id, label("a"))}, reports: []any{group("b", "i-1")}},

		"the label of a shard that was removed": {nodes: []*corev1.Node{newNode("n", id, label("c"))}, reports: []any{group("a", "i-1")}},
		"the label of a shard that was removed, and another report": {nodes: []*corev1.Node{newNode("n", id, label("c"))}, reports: []any{group("b", "i-1")},
			foreign: `shard a reports the provider id "aws:///us-west-2a/i-1", and so does shard b`},

		"the group of another shard": {nodes: []*corev1.Node{newNode("n", id, nil)}, reports: []any{group("a", "i-1"), group("b", "us-west-2a/i-1")},
			foreign: `shard a reports the provider id "aws:///us-west-2a/i-1", and so does shard b`},
		"an on-demand instance of another shard": {nodes: []*corev1.Node{newNode("n", id, nil)}, reports: []any{onDemand("b", "i-1")},
			foreign: `shard a reports the provider id "aws:///us-west-2a/i-1", and so does shard b`},
		"no Node and another report": {reports: []any{group("b", "i-1")}, foreign: `shard a reports the provider id "us-west-2a/i-1", and so does shard b`},
		"the label of another shard": {nodes: []*corev1.Node{newNode("n", id, label("b"))},
			foreign: `shard a reports the provider id "aws:///us-west-2a/i-1" of Node n, which has the label nstance.dev/shard=b`},
		"the label of no shard": {nodes: []*corev1.Node{newNode("n", id, label(""))},
			foreign: `shard a reports the provider id "aws:///us-west-2a/i-1" of Node n, which has the label nstance.dev/shard=`},
	} {
		t.Run(name, func(t *testing.T) {
			h := controllertest.NewHarness(t, shardtest.New("a", "b"))
			nodes, err := controllers.NewNodes(&h.Dependencies)
			require.NoError(t, err)
			for _, node := range test.nodes {
				h.Put(h.Informers.Nodes, node)
			}
			for _, report := range test.reports {
				if _, ok := report.(*v1beta1.NstanceShardGroup); ok {
					h.Put(h.Informers.Nstance.NstanceShardGroups().Informer(), report)
				} else {
					h.Put(h.Informers.Nstance.NstanceMachines().Informer(), report)
				}
			}
			found, foreign := nodes.OfInstance("a", "us-west-2a/i-1")
			assert.Len(t, found, len(test.nodes))
			assert.Equal(t, test.foreign, foreign)
		})
	}
}
