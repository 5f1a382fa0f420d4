// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// annotationLabels tells the autoscaler of the labels of a Node that there is not
// yet.
const annotationLabels = "capacity.cluster-autoscaler.kubernetes.io/labels"

// A pool without instances tells the autoscaler what a Node would be like, with no
// help from its user; and that is what the Nodes are like on every shard.
func TestFromZeroAndBack(t *testing.T) {
	t.Parallel()
	const name = "zero"
	watchOperator(t)
	group := createPool(t, name, 0)
	var labels map[string]string
	eventually(t, "the pool tells what its Nodes will be like", func(ctx context.Context) (err error) {
		labels, err = promised(ctx, name)
		return err
	})
	from := auditEnd(t)
	if err := group.increaseSize(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	untilRunning(t, name, 1)
	if err := group.increaseSize(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	found := untilRunning(t, name, 6)
	expectAsPromised(t, name, labels)
	expectUniqueProviderIDs(t, group, found)

	nodes, err := group.nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := group.deleteNodes(t.Context(), nodes...); err != nil {
		t.Fatal(err)
	}
	untilMachinesGone(t, found.ids()...)
	untilRunning(t, name, 0)
	untilLookedAgain(t)
	expectInstances(t, name, instances{})
	expectNodeChanges(t, from, name, 6, found.ids()...)
	if _, err := promised(t.Context(), name); err != nil {
		t.Errorf("at zero again: %v", err)
	}
}

// promised succeeds when a pool tells all that the autoscaler must know of a Node,
// and returns the labels that it is to have.
func promised(ctx context.Context, name string) (map[string]string, error) {
	pool, err := getPool(ctx, name)
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
	machinePool, err := env.capi.MachinePools(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
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

// expectAsPromised fails the test unless every Node of a pool is as the pool says,
// and has the labels that it was to have.
func expectAsPromised(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	if labels[corev1.LabelArchStable] != "amd64" || labels[corev1.LabelInstanceTypeStable] == "" {
		t.Errorf("its Nodes are to have labels %v, want architecture and instance type among them", labels)
	}
	pool, err := getPool(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := nodesOf(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
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

// expectUniqueProviderIDs fails the test unless the end of each provider id names
// one instance, whichever shard it is on.
func expectUniqueProviderIDs(t *testing.T, group nodeGroup, found instances) {
	t.Helper()
	ids, err := group.instances(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := found
	for _, id := range ids {
		if _, ok := left[lastSegment(id)]; !ok {
			t.Errorf("provider id %s ends in no instance, or in one that another one ends in", id)
		}
		left = left.without(lastSegment(id))
	}
	if len(left) > 0 {
		t.Errorf("instances %v have no provider id", left.ids())
	}
	for _, shardID := range shardIDs {
		if len(found.on(shardID)) == 0 {
			t.Errorf("no instance is on shard %s, so nothing was shown of it", shardID)
		}
	}
}

// What a user has written himself is not written over, before or after.
func TestUserLabelsWin(t *testing.T) {
	t.Parallel()
	const name, first, second = "zero-of-user", "tier=first", "tier=second"
	watchOperator(t)
	createPool(t, name, 0, func(machinePool *clusterv1.MachinePool, _ *v1beta1.NstanceMachinePool) {
		machinePool.Annotations[annotationLabels] = first
	})
	says := func(want string) func(context.Context) error {
		return func(ctx context.Context) error {
			labels, err := promised(ctx, name)
			if err == nil && fmt.Sprint(labels) != fmt.Sprint(map[string]string{"tier": want}) {
				err = fmt.Errorf("labels are %v", labels)
			}
			return err
		}
	}
	eventually(t, "the pool tells what its Nodes will be like", says("first"))
	untilLookedAgain(t)
	if err := says("first")(t.Context()); err != nil {
		t.Error(err)
	}
	// Once it is nobody's, the operator tells again, until somebody knows better.
	annotatePool(t, name, annotationLabels, "null")
	eventually(t, "the operator tells of labels", func(ctx context.Context) error {
		labels, err := promised(ctx, name)
		if err == nil && labels[corev1.LabelArchStable] == "" {
			err = fmt.Errorf("labels are %v", labels)
		}
		return err
	})
	annotatePool(t, name, annotationLabels, `"`+second+`"`)
	untilLookedAgain(t)
	if err := says("second")(t.Context()); err != nil {
		t.Error(err)
	}
}
