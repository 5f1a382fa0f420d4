// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// blockingBudget is the name of the disruption budget of BlockDrains.
const blockingBudget = "all"

// BlockDrains puts a Pod on each Node of a group, none of which may be evicted. The Pods
// are in a new namespace of the name of the group.
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
