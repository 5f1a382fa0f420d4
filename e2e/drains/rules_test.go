// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A drain of a shard follows Cluster API's label and rules: it skips a Pod, waits for a Pod to
// complete, and evicts a Pod of a higher order when the others have left.
func TestADrainFollowsTheRulesOfClusterAPI(t *testing.T) {
	t.Parallel()
	const name = "rules"
	node := createGroup(t, steadyShard, name, 1)[0]
	env.CreateNamespace(t, name)
	first, skipped, batch, last := newPod(name, "first", node), newPod(name, "skipped", node), newPod(name, "batch", node), newPod(name, "last", node)
	skipped.Labels[clusterv1.PodDrainLabel] = "skip"
	batch.Labels[clusterv1.PodDrainLabel] = "wait-completed"
	env.CreatePods(t, timeout, first, skipped, batch, last)
	createRule(t, name, map[string]any{
		"drain": map[string]any{"behavior": "Drain", "order": int64(10)},
		"machines": []any{map[string]any{"selector": map[string]any{
			"matchLabels": map[string]any{clusterv1.MachinePoolNameLabel: name}}}},
		"pods": []any{map[string]any{
			"selector":          map[string]any{"matchLabels": map[string]any{"app": last.Name}},
			"namespaceSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelMetadataName: name}}}},
	})

	from := env.AuditEnd(t)
	env.Scale(t, name, 0)
	testcluster.Eventually(t, timeout, "the first Pod has left, and the shard group reports what the drain waits for", func(ctx context.Context) error {
		if _, err := env.Kube.CoreV1().Pods(name).Get(ctx, first.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the first Pod: %w", err)
		}
		condition, err := progress(ctx, steadyShard, name)
		if err == nil && (condition.Status != metav1.ConditionTrue ||
			!strings.Contains(condition.Message, "waits for Pod rules/batch to complete, at the latest until ")) {
			err = fmt.Errorf("condition %+v", condition)
		}
		return err
	})
	completed := time.Now()
	for _, pod := range []*corev1.Pod{skipped, batch, last} {
		assert.Empty(t, evictions(t, from, name, pod.Name), "evictions of Pod %s", pod.Name)
	}
	patchPod(t, name, batch.Name, `{"status":{"phase":"Succeeded"}}`, "status")
	untilDrained(t, node)
	for _, pod := range []*corev1.Pod{skipped, batch} {
		assert.Empty(t, evictions(t, from, name, pod.Name), "evictions of Pod %s", pod.Name)
	}
	evicted := evictions(t, from, name, last.Name)
	if len(evicted) == 0 || evicted[0].Code != http.StatusCreated || evicted[0].Time.Before(completed.Add(-time.Second)) {
		t.Errorf("the last Pod was evicted by %v, the Pod before it completed at %s", evicted, completed)
	}
}

// A hook of a Machine delays the drain of the shard, although its Pod could leave.
func TestADrainWaitsForTheHookOfAMachine(t *testing.T) {
	t.Parallel()
	const name = "hooked"
	const hook = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/test"
	pool := testcluster.NewNstanceMachinePool(name, steadyShard)
	pool.Spec.MachineMode = v1beta1.MachineModeAlways
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, 1), pool))
	node := readyNodes(t, name, 1)[0]
	var machine string
	testcluster.Eventually(t, timeout, "the Machine has the Node", func(ctx context.Context) error {
		machines, err := env.Machines().List(ctx, metav1.ListOptions{LabelSelector: clusterv1.MachinePoolNameLabel + "=" + name})
		if err != nil {
			return err
		}
		if len(machines.Items) != 1 || machines.Items[0].Status.NodeRef.Name != node {
			return fmt.Errorf("%d Machines", len(machines.Items))
		}
		machine = machines.Items[0].Name
		return nil
	})
	annotate := func(value string) {
		t.Helper()
		_, err := env.Machines().Patch(t.Context(), machine, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, hook, value), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	annotate(`""`)
	env.CreateNamespace(t, name)
	pod := newPod(name, "web", node)
	env.CreatePods(t, timeout, pod)

	from := env.AuditEnd(t)
	env.Scale(t, name, 0)
	testcluster.Eventually(t, timeout, "the shard group reports the hook", func(ctx context.Context) error {
		condition, err := progress(ctx, steadyShard, name)
		if err == nil && (condition.Status != metav1.ConditionTrue || !strings.Contains(condition.Message, "does not have the annotation "+hook)) {
			err = fmt.Errorf("condition %+v", condition)
		}
		return err
	})
	assert.Empty(t, evictions(t, from, name, pod.Name), "evictions while there is a hook")
	drain, _ := env.drains[steadyShard].ofInstance(node)
	assert.Empty(t, drain.Acknowledged, "acknowledgements while there is a hook")
	annotate("null")
	untilDrained(t, node)
	assert.NotEmpty(t, evictions(t, from, name, pod.Name), "evictions without a hook")
}

// createRule creates a MachineDrainRule.
func createRule(t testing.TB, name string, spec map[string]any) {
	t.Helper()
	rule := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(), "kind": "MachineDrainRule",
		"metadata": map[string]any{"namespace": installation.Namespace, "name": name}, "spec": spec,
	}}
	_, err := env.ClusterAPI("machinedrainrules").Create(t.Context(), rule, metav1.CreateOptions{})
	require.NoError(t, err)
}
