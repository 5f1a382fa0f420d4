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
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
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

func TestPoolsAreFoundByGroup(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &v1beta1.NstanceMachinePool{}, 0, cache.Indexers{})
	pools, err := NewPools(informer)
	require.NoError(t, err)
	if _, err := NewPools(informer); err != nil {
		t.Errorf("a second controller cannot share the index: %v", err)
	}
	for name, group := range map[string]v1beta1.Identifier{"one": "workers", "two": "others"} {
		pool := &v1beta1.NstanceMachinePool{}
		pool.Name, pool.Spec.Group = name, group
		require.NoError(t, informer.GetIndexer().Add(pool))
	}
	if found := pools.OfGroup("workers"); len(found) != 1 || found[0].Name != "one" {
		t.Errorf("found %v, want the pool one", found)
	}
	if found := pools.OfGroup("missing"); len(found) > 0 {
		t.Errorf("found %v, want none", found)
	}
}
