// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// CreatePoolForTest creates a MachinePool and its pool over all shards, and deletes both at the
// end of the test.
func (c *Cluster) CreatePoolForTest(t testing.TB, name string, replicas int32) {
	t.Helper()
	require.NoError(t, c.CreatePoolOnAllShards(t.Context(), name, replicas))
	t.Cleanup(func() { c.DeletePools(t, name) })
}

// CreatePoolOnAllShards creates a MachinePool and its pool over all shards, which the
// caller deletes.
func (c *Cluster) CreatePoolOnAllShards(ctx context.Context, name string, replicas int32) error {
	return c.CreatePoolOn(ctx, name, replicas, c.ShardIDs...)
}

// CreatePoolOn is CreatePoolOnAllShards for some shards.
func (c *Cluster) CreatePoolOn(ctx context.Context, name string, replicas int32, shards ...string) error {
	return c.CreatePool(ctx, NewMachinePool(name, replicas), NewNstanceMachinePool(name, shards...))
}

// CreatePool creates a MachinePool and its NstanceMachinePool with the settings of all pools of this cluster.
func (c *Cluster) CreatePool(ctx context.Context, machinePool *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) error {
	if c.poolSettings != nil {
		c.poolSettings(&pool.Spec)
	}
	return c.Clients.CreatePool(ctx, machinePool, pool)
}

// AllowedTypes are the instance types that shards must allow for pools with RotationAndCandidates.
var AllowedTypes = []string{"m7i.*"}

// RotationAndCandidates gives a pool a rotation policy and candidates: one on-demand instance, the others half
// spot and half of another type. A pool with an instance type of its own gets the policy only.
func RotationAndCandidates(spec *v1beta1.NstanceMachinePoolSpec) {
	spec.Rotation = &v1beta1.RotationPolicy{MaxSurge: ptr.To(intstr.FromString("25%")), Canary: 1}
	if spec.InstanceType != "" {
		return
	}
	spec.Candidates = []v1beta1.Candidate{
		{Name: "base", Market: v1beta1.MarketStandard, MaxReplicas: ptr.To(intstr.FromInt32(1))},
		{Name: "spot", Market: v1beta1.MarketSpot, MaxReplicas: ptr.To(intstr.FromString("50%"))},
		{Name: "fallback", InstanceType: "m7i.xlarge", Market: v1beta1.MarketStandard},
	}
}

// DeletePools scales pools to zero before it deletes them, so that the next test does not find
// their Nodes.
func (c *Cluster) DeletePools(t testing.TB, names ...string) {
	for _, name := range names {
		c.Scale(t, name, 0)
	}
	for _, name := range names {
		Eventually(t, time.Minute, name+" has no instances", func(ctx context.Context) error {
			return c.noInstances(ctx, name)
		})
		c.DeleteMachinePool(t, name)
	}
	for _, name := range names {
		Eventually(t, time.Minute, name+" is deleted", func(ctx context.Context) error { return c.PoolDeleted(ctx, name) })
	}
}

// DeleteMachinePool deletes a MachinePool if it exists. It waits until the API server accepts
// that: for about 30 seconds after its start, it has not discovered the parameters of the policy
// for deletions, and rejects every deletion.
func (c *Cluster) DeleteMachinePool(t testing.TB, name string) {
	t.Helper()
	Eventually(t, 2*time.Minute, "the deletion of "+name+" is accepted", func(ctx context.Context) error {
		err := c.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// noInstances succeeds when no shard group of a pool wants or has instances.
func (c *Cluster) noInstances(ctx context.Context, name string) error {
	groups, err := c.ShardGroups(ctx, name)
	if err != nil {
		return err
	}
	for _, group := range groups {
		if group.Spec.Size != 0 || ptr.Deref(group.Status.Replicas, -1) != 0 {
			return fmt.Errorf("size of %s is %d, running %d", group.Name, group.Spec.Size, ptr.Deref(group.Status.Replicas, -1))
		}
	}
	return nil
}

// PoolDeleted succeeds when a pool has neither shard groups nor a MachinePool any more.
func (c *Cluster) PoolDeleted(ctx context.Context, name string) error {
	groups, err := c.ShardGroups(ctx, name)
	if err != nil {
		return err
	}
	if len(groups) > 0 {
		return fmt.Errorf("%d shard groups are left", len(groups))
	}
	_, err = c.MachinePools().Get(ctx, name, metav1.GetOptions{})
	return NotFound("the MachinePool", err)
}

// SizesAre succeeds when the shard groups of a pool have these sizes, and run
// that many instances.
func (c *Cluster) SizesAre(ctx context.Context, group string, sizes ...int32) error {
	groups, err := c.ShardGroups(ctx, group)
	if err != nil {
		return err
	}
	var want, actual []int32
	for _, g := range groups {
		want = append(want, g.Spec.Size)
		actual = append(actual, ptr.Deref(g.Status.Replicas, -1))
	}
	if !slices.Equal(want, sizes) || !slices.Equal(actual, sizes) {
		return fmt.Errorf("sizes %v, running %v, want %v", want, actual, sizes)
	}
	return nil
}

// UntilRunning waits until a pool runs with so many instances.
func (c *Cluster) UntilRunning(t testing.TB, name string, replicas int32) {
	t.Helper()
	Eventually(t, 3*time.Minute, fmt.Sprintf("%s runs with %d replicas", name, replicas), func(ctx context.Context) error {
		return c.Running(ctx, name, replicas)
	})
}

// Settled succeeds when nothing is wrong with a pool, and its shards run what they are to run.
func Settled(pool *v1beta1.NstanceMachinePool) error {
	conditions := pool.Status.Conditions
	return errors.Join(
		HasCondition(conditions, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady),
		notScaling(conditions, v1beta1.ConditionScalingUp), notScaling(conditions, v1beta1.ConditionScalingDown))
}

// notScaling fails while a condition is true. Versions before v0.1.0 do not have it.
func notScaling(conditions []metav1.Condition, kind string) error {
	if condition := meta.FindStatusCondition(conditions, kind); condition != nil && condition.Status == metav1.ConditionTrue {
		return fmt.Errorf("condition %+v", *condition)
	}
	return nil
}

// Running succeeds when the pool, its MachinePool and the Nodes agree on the pool's
// size.
func (c *Cluster) Running(ctx context.Context, name string, replicas int32) error {
	pool, err := c.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	if err := Settled(pool); err != nil {
		return err
	}
	if !ptr.Deref(pool.Status.Ready, false) {
		return errors.New("status.ready of the pool is not true")
	}
	if len(pool.Spec.ProviderIDList) != int(replicas) || ptr.Deref(pool.Status.Replicas, -1) != replicas {
		return fmt.Errorf("pool lists %d instances and counts %d, want %d",
			len(pool.Spec.ProviderIDList), ptr.Deref(pool.Status.Replicas, -1), replicas)
	}
	machinePool, err := c.MachinePools().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if machinePool.Status.Phase != string(clusterv1.MachinePoolPhaseRunning) || ptr.Deref(machinePool.Status.ReadyReplicas, -1) != replicas {
		return fmt.Errorf("MachinePool is %s with %d ready, want Running with %d",
			machinePool.Status.Phase, ptr.Deref(machinePool.Status.ReadyReplicas, -1), replicas)
	}
	ready, err := c.ReadyNodeIDs(ctx, name)
	if err != nil {
		return err
	}
	slices.Sort(ready)
	if !slices.Equal(ready, pool.Spec.ProviderIDList) {
		return fmt.Errorf("ready Nodes %v, pool lists %v", ready, pool.Spec.ProviderIDList)
	}
	return nil
}

// ReadyNodeIDs returns the provider ids of the ready Nodes of a group.
func (c *Cluster) ReadyNodeIDs(ctx context.Context, group string) ([]string, error) {
	nodes, err := c.Nodes(ctx, group)
	if err != nil {
		return nil, err
	}
	ids := []string{}
	for _, node := range nodes {
		if IsReady(node) {
			ids = append(ids, node.Spec.ProviderID)
		}
	}
	return ids, nil
}

// blockingBudget is the name of the disruption budget of BlockDrains.
const blockingBudget = "all"

// BlockDrains puts a Pod that may not be evicted on each Node of a group. The Pods are in a new
// namespace of the name of the group.
func (c *Cluster) BlockDrains(t testing.TB, group string) {
	t.Helper()
	c.CreateNamespace(t, group)
	labels := map[string]string{"app": group}
	nodes, err := c.Nodes(t.Context(), group)
	require.NoError(t, err)
	for i := range nodes {
		_, err := c.Kube.CoreV1().Pods(group).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: labels},
			Spec: corev1.PodSpec{
				NodeName:   nodes[i].Name,
				Containers: []corev1.Container{{Name: "main", Image: "none"}},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	budgets := c.Kube.PolicyV1().PodDisruptionBudgets(group)
	_, err = budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: blockingBudget},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	Eventually(t, time.Minute, "the Pods run and the budget counts them", func(ctx context.Context) error {
		budget, err := budgets.Get(ctx, blockingBudget, metav1.GetOptions{})
		if err == nil && int(budget.Status.CurrentHealthy) != len(nodes) {
			err = fmt.Errorf("%d of %d are healthy", budget.Status.CurrentHealthy, len(nodes))
		}
		return err
	})
}

// UnblockDrains lets the Pods of BlockDrains be evicted.
func (c *Cluster) UnblockDrains(t testing.TB, group string) {
	t.Helper()
	require.NoError(t, c.Kube.PolicyV1().PodDisruptionBudgets(group).
		Delete(context.WithoutCancel(t.Context()), blockingBudget, metav1.DeleteOptions{}))
}

// UntilShardsReachable waits until a pool reports whether all of its shards are reachable. If they
// are not, it is not Ready either.
func (c *Cluster) UntilShardsReachable(t testing.TB, name string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	what := fmt.Sprintf("pool %s has ShardsReachable=%s, %s", name, status, reason)
	Eventually(t, 2*time.Minute, what, func(ctx context.Context) error {
		pool, err := c.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		if status == metav1.ConditionFalse && meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady) {
			return errors.New("the pool is Ready")
		}
		return HasCondition(pool.Status.Conditions, v1beta1.ConditionShardsReachable, status, reason)
	})
}
