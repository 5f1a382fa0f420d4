// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestNodesAreFoundByProviderID(t *testing.T) {
	informer := kubeinformers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Nodes().Informer()
	nodes, err := NewNodes(informer)
	require.NoError(t, err)
	if _, err := NewNodes(informer); err != nil {
		t.Errorf("a second controller cannot share the index: %v", err)
	}
	for name, id := range map[string]string{
		"one": "aws:///us-west-2a/i-1", "two": "aws:///us-west-2b/i-1", "other": "aws:///us-west-2a/i-2", "none": "",
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: id}}
		require.NoError(t, informer.GetIndexer().Add(node))
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
