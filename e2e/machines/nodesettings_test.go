// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A kubelet registers with what spec.node of its pool says, so that no Pod is scheduled on its Node
// before. The operator adds the label that a kubelet may not set.
func TestNodesRegisterWithTheSettingsOfTheirPool(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	const name, role = "settings", "node-role.kubernetes.io/searcher"
	pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
	pool.Spec.Node = &v1beta1.NodeSettings{
		Labels:  map[string]string{"team": "search", role: ""},
		Taints:  []v1beta1.NodeTaint{{Key: "dedicated", Value: "search", Effect: corev1.TaintEffectPreferNoSchedule, Propagation: v1beta1.TaintAlways}},
		MaxPods: 17,
	}
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, 0), pool))
	t.Cleanup(func() { env.DeletePools(t, name) })

	// A kubelet sends the first version of its Node. Each Node has the label of its group.
	selector := "nstance.dev/group=" + name
	nodes := env.Kube.CoreV1().Nodes()
	before, err := nodes.List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	require.NoError(t, err)
	require.Empty(t, before.Items)
	watcher, err := nodes.Watch(t.Context(), metav1.ListOptions{LabelSelector: selector, ResourceVersion: before.ResourceVersion})
	require.NoError(t, err)
	defer watcher.Stop()
	env.Scale(t, name, 1)
	env.UntilRunning(t, name, 1)

	registered := firstNode(t, watcher)
	assert.NotContains(t, registered.Annotations, v1beta1.AnnotationNodeSettings, "the operator has written to the Node")
	assert.Equal(t, "search", registered.Labels["team"])
	assert.NotContains(t, registered.Labels, role)
	assert.Contains(t, registered.Spec.Taints, corev1.Taint{Key: "dedicated", Value: "search", Effect: corev1.TaintEffectPreferNoSchedule})
	assert.EqualValues(t, 17, registered.Status.Capacity.Pods().Value())

	testcluster.Eventually(t, time.Minute, "the operator sets the label that a kubelet may not set", func(ctx context.Context) error {
		node, err := nodes.Get(ctx, registered.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, found := node.Labels[role]; !found {
			return fmt.Errorf("Node %s has the labels %v", node.Name, node.Labels)
		}
		return nil
	})
}

// firstNode returns the first version of the first Node that is added.
func firstNode(t *testing.T, watcher watch.Interface) *corev1.Node {
	t.Helper()
	timeout := time.NewTimer(2 * time.Minute)
	defer timeout.Stop()
	for {
		select {
		case event, open := <-watcher.ResultChan():
			require.True(t, open, "the watch ended before a Node was added")
			if node, isNode := event.Object.(*corev1.Node); isNode && event.Type == watch.Added {
				return node
			}
		case <-timeout.C:
			require.FailNow(t, "no Node was added")
		}
	}
}
