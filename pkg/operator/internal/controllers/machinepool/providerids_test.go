// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

func node(name, providerID string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
}

func TestProviderIDs(t *testing.T) {
	pool := newPool("a", "b")
	tests := map[string]struct {
		before    []string
		partial   bool
		groups    []*v1beta1.NstanceShardGroup
		nodes     []*corev1.Node
		want      []string
		ambiguous string
	}{
		"there are none": {before: []string{"i-1"}},
		"without Nodes they are the servers', sorted": {
			groups: []*v1beta1.NstanceShardGroup{
				ready(newShardGroup(pool, "a", 2), "i-3", "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"),
			},
			want: []string{"i-1", "i-2", "i-3"},
		},
		"they are written as on their Nodes": {
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 2), "i-1", "us-west-2a/i-2")},
			nodes:  []*corev1.Node{node("one", "aws:///us-west-2a/i-1"), node("two", "aws:///us-west-2a/i-2"), node("other", "aws:///us-west-2b/i-2")},
			want:   []string{"aws:///us-west-2a/i-1", "aws:///us-west-2a/i-2"},
		},
		"those of a shard that is away stay": {
			groups: []*v1beta1.NstanceShardGroup{away(ready(newShardGroup(pool, "a", 1), "i-1")), ready(newShardGroup(pool, "b", 1), "i-2")},
			want:   []string{"i-1", "i-2"},
		},
		"an instance that two shards report is listed once": {
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-1")},
			want:   []string{"i-1"},
		},
		"two Nodes are problem, and the server's words are all there is": {
			groups:    []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			nodes:     []*corev1.Node{node("one", "aws:///us-west-2a/i-1"), node("two", "aws:///us-west-2b/i-1")},
			want:      []string{"i-1"},
			ambiguous: `provider id "i-1" matches 2 Nodes`,
		},
		"a second Node does not put an id out of the list": {
			before:    []string{"aws:///us-west-2a/i-1"},
			groups:    []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			nodes:     []*corev1.Node{node("one", "aws:///us-west-2a/i-1"), node("two", "aws:///us-west-2b/i-1")},
			want:      []string{"aws:///us-west-2a/i-1"},
			ambiguous: `provider id "i-1" matches 2 Nodes`,
		},
		"a Node that went does not put an id out of the list": {
			before: []string{"aws:///us-west-2a/i-1"},
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			want:   []string{"aws:///us-west-2a/i-1"},
		},
		"an id that no shard reports is removed": {
			before: []string{"aws:///us-west-2a/i-1", "aws:///us-west-2a/i-2"},
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			nodes:  []*corev1.Node{node("one", "aws:///us-west-2a/i-1"), node("two", "aws:///us-west-2a/i-2")},
			want:   []string{"aws:///us-west-2a/i-1"},
		},
		"an id that no shard reports stays while a shard has reported nothing": {
			before:  []string{"aws:///us-west-2a/i-1", "i-2", "i-3"},
			partial: true,
			groups:  []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "us-west-2a/i-1", "i-2")},
			nodes:   []*corev1.Node{node("two", "aws:///us-west-2a/i-2")},
			want:    []string{"aws:///us-west-2a/i-1", "aws:///us-west-2a/i-2", "i-3"},
		},
		"a Node with another id of the same instance is right": {
			before: []string{"i-1"},
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			nodes:  []*corev1.Node{node("one", "aws:///us-west-2a/i-1")},
			want:   []string{"aws:///us-west-2a/i-1"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, shardtest.New())
			for _, node := range test.nodes {
				h.Put(h.Informers.Nodes, node)
			}
			got, ambiguous := h.controller.providerIDs(test.before, test.groups, !test.partial)
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			message := ""
			if ambiguous != nil {
				message = ambiguous.message
			}
			if message != test.ambiguous {
				t.Errorf("got problem %q, want %q", message, test.ambiguous)
			}
		})
	}
}
