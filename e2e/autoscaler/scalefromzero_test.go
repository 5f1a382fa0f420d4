// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// annotationLabels has the labels of the Nodes that a pool without instances would have
// (https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler/cloudprovider/clusterapi).
const annotationLabels = "capacity.cluster-autoscaler.kubernetes.io/labels"

// A pool without instances reports the capacity and labels of a Node to the autoscaler, without
// configuration by its user, and the Nodes on every shard have them.
func TestScaleFromZeroAndBack(t *testing.T) {
	t.Parallel()
	const name = "zero"
	watchOperator(t)
	group := createPool(t, name, 0)
	var labels map[string]string
	testcluster.Eventually(t, timeout, "the pool reports what its Nodes will be like", func(ctx context.Context) (err error) {
		labels, err = reportedLabels(ctx, name)
		return err
	})
	from := env.AuditEnd(t)
	require.NoError(t, group.increaseSize(t.Context(), 1))
	untilRunning(t, name, 1)
	require.NoError(t, group.increaseSize(t.Context(), 5))
	found := untilRunning(t, name, 6)
	expectAsReported(t, name, labels)
	expectUniqueProviderIDs(t, group, found)

	nodes, err := group.nodes(t.Context())
	require.NoError(t, err)
	require.NoError(t, group.deleteNodes(t.Context(), nodes...))
	untilMachinesDeleted(t, found.ids()...)
	untilRunning(t, name, 0)
	untilResynced(t)
	expectInstances(t, name, instances{})
	expectNodeChanges(t, from, name, 6, found.ids()...)
	if _, err := reportedLabels(t.Context(), name); err != nil {
		t.Errorf("at zero again: %v", err)
	}
}

// reportedLabels succeeds when a pool reports all that the autoscaler needs to know of
// a Node, and returns the labels that the Node will have.
func reportedLabels(ctx context.Context, name string) (map[string]string, error) {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if pool.Status.Capacity.Name(resource, "").IsZero() {
			return nil, fmt.Errorf("capacity is %v, without %s", pool.Status.Capacity, resource)
		}
	}
	if info := pool.Status.NodeInfo; info.Architecture != "amd64" || info.OperatingSystem != "linux" {
		return nil, fmt.Errorf("node info is %+v", info)
	}
	machinePool, err := env.MachinePools().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	for pair := range strings.SplitSeq(machinePool.Annotations[annotationLabels], ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("the MachinePool has annotations %v, without a list of labels", machinePool.Annotations)
		}
		labels[key] = value
	}
	return labels, nil
}

// expectAsReported fails the test unless every Node of a pool has the reported capacity and these
// labels.
func expectAsReported(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	if labels[corev1.LabelArchStable] != "amd64" || labels[corev1.LabelInstanceTypeStable] == "" {
		t.Errorf("the reported labels are %v, want architecture and instance type among them", labels)
	}
	pool, err := env.NstanceMachinePool(t.Context(), name)
	require.NoError(t, err)
	nodes, err := env.Nodes(t.Context(), name)
	require.NoError(t, err)
	for _, node := range nodes {
		for resource, quantity := range pool.Status.Capacity {
			if got := node.Status.Capacity[resource]; got.Cmp(quantity) != 0 {
				t.Errorf("Node %s has %s %s, want %s", node.Name, got.String(), resource, quantity.String())
			}
		}
		for key, value := range labels {
			if got, ok := node.Labels[key]; !ok || got != value {
				t.Errorf("Node %s has label %s=%q, want %q", node.Name, key, got, value)
			}
		}
		if info := node.Status.NodeInfo; info.Architecture != pool.Status.NodeInfo.Architecture || info.OperatingSystem != pool.Status.NodeInfo.OperatingSystem {
			t.Errorf("Node %s has %s and %s, want %+v", node.Name, info.Architecture, info.OperatingSystem, pool.Status.NodeInfo)
		}
	}
}

// expectUniqueProviderIDs fails the test unless the last segment of each provider id
// identifies one instance, whichever shard it is on.
func expectUniqueProviderIDs(t *testing.T, group nodeGroup, found instances) {
	t.Helper()
	ids, err := group.instances(t.Context())
	require.NoError(t, err)
	left := found
	for _, id := range ids {
		if _, ok := left[lastSegment(id)]; !ok {
			t.Errorf("provider id %s identifies no instance, or the same as another one", id)
		}
		left = left.without(lastSegment(id))
	}
	assert.Empty(t, left, "instances %v have no provider id", left.ids())
	for _, shardID := range shardIDs {
		if len(found.on(shardID)) == 0 {
			t.Errorf("no instance is on shard %s", shardID)
		}
	}
}

// The operator never overwrites labels that a user has set.
func TestUserLabelsAreKept(t *testing.T) {
	t.Parallel()
	const name, first, second = "zero-of-user", "tier=first", "tier=second"
	watchOperator(t)
	createPool(t, name, 0, func(machinePool *clusterv1.MachinePool, _ *v1beta1.NstanceMachinePool) {
		machinePool.Annotations[annotationLabels] = first
	})
	reports := func(want string) func(context.Context) error {
		return func(ctx context.Context) error {
			labels, err := reportedLabels(ctx, name)
			if err == nil && fmt.Sprint(labels) != fmt.Sprint(map[string]string{"tier": want}) {
				err = fmt.Errorf("labels are %v", labels)
			}
			return err
		}
	}
	testcluster.Eventually(t, timeout, "the pool reports what its Nodes will be like", reports("first"))
	untilResynced(t)
	if err := reports("first")(t.Context()); err != nil {
		t.Error(err)
	}
	// Once the user removes the annotation, the operator sets it, until the user does
	// again.
	annotatePool(t, name, annotationLabels, "null")
	testcluster.Eventually(t, timeout, "the operator reports labels", func(ctx context.Context) error {
		labels, err := reportedLabels(ctx, name)
		if err == nil && labels[corev1.LabelArchStable] == "" {
			err = fmt.Errorf("labels are %v", labels)
		}
		return err
	})
	annotatePool(t, name, annotationLabels, `"`+second+`"`)
	untilResynced(t)
	if err := reports("second")(t.Context()); err != nil {
		t.Error(err)
	}
}
