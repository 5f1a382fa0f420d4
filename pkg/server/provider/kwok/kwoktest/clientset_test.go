// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwoktest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAWatchMissesNothingSinceItsList changes objects between list and watch.
func TestAWatchMissesNothingSinceItsList(t *testing.T) {
	node := func(name, shard string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"shard": shard}}}
	}
	nodes := NewClientset(node("stays", "a"), node("leaves", "a"), node("leaves-elsewhere", "b")).CoreV1().Nodes()
	ours := metav1.ListOptions{LabelSelector: "shard=a"}
	list, err := nodes.List(t.Context(), ours)
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("listed %v, %v", list, err)
	}
	remove := func(name string) {
		t.Helper()
		require.NoError(t, nodes.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	create := func(name, shard string) {
		t.Helper()
		_, err := nodes.Create(t.Context(), node(name, shard), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	remove("leaves")
	remove("leaves-elsewhere")
	// A later list has fewer objects, and so another version.
	later, err := nodes.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, list.ResourceVersion, later.ResourceVersion)
	create("comes", "a")
	create("comes-elsewhere", "b")
	create("comes-and-leaves", "a")
	remove("comes-and-leaves")

	ours.ResourceVersion = list.ResourceVersion
	watch, err := nodes.Watch(t.Context(), ours)
	require.NoError(t, err)
	defer watch.Stop()
	relabel := func(name, shard string) {
		t.Helper()
		_, err := nodes.Update(t.Context(), node(name, shard), metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	relabel("comes", "b")
	relabel("comes", "c")
	relabel("comes-elsewhere", "a")
	relabel("comes-elsewhere", "a")
	remove("stays")
	var got []string
	// The deletion of a Node begins with an update, which gives it a version.
	for range 7 {
		event := <-watch.ResultChan()
		got = append(got, fmt.Sprint(event.Type, " ", event.Object.(*corev1.Node).Name))
	}
	if want := []string{"DELETED leaves", "ADDED comes", "DELETED comes", "ADDED comes-elsewhere", "MODIFIED comes-elsewhere", "MODIFIED stays", "DELETED stays"}; !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
}

// TestAWatchHasNoDeletionFromBeforeItsList lists the same version before and after a
// deletion.
func TestAWatchHasNoDeletionFromBeforeItsList(t *testing.T) {
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	nodes := NewClientset(node("first"), node("second"), node("third")).CoreV1().Nodes()
	var lists []*corev1.NodeList
	for _, next := range []string{"first", "second", ""} {
		list, err := nodes.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		lists = append(lists, list)
		if next != "" {
			require.NoError(t, nodes.Delete(t.Context(), next, metav1.DeleteOptions{}))
		}
	}
	for _, list := range lists {
		watch, err := nodes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		require.NoError(t, err)
		defer watch.Stop()
		for range len(list.Items) - 1 {
			assert.Equal(t, "DELETED", string((<-watch.ResultChan()).Type))
		}
		_, err = nodes.Create(t.Context(), node(fmt.Sprint("last of ", len(list.Items))), metav1.CreateOptions{})
		require.NoError(t, err)
		assert.Equal(t, "ADDED", string((<-watch.ResultChan()).Type))
	}
}
