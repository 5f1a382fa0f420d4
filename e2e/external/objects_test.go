// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package external

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// newPod returns a Pod on a Node, or for the scheduler.
func newPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": namespace}},
		Spec: corev1.PodSpec{
			NodeName:                     node,
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

// createPod creates a Pod in the workload cluster, and waits until it runs if it has a Node.
func createPod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pods := env.NodeKube.CoreV1().Pods(pod.Namespace)
	created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	if pod.Spec.NodeName == "" {
		return created
	}
	testcluster.Eventually(t, timeout, "Pod "+pod.Name+" runs", func(ctx context.Context) error {
		running, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && running.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %s", running.Status.Phase)
		}
		return err
	})
	return created
}

// protect creates a budget that allows no eviction of the Pods of a namespace.
func protect(t *testing.T, namespace string) {
	t.Helper()
	budgets := env.NodeKube.PolicyV1().PodDisruptionBudgets(namespace)
	_, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": namespace}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "the budget is in force", func(ctx context.Context) error {
		budget, err := budgets.Get(ctx, namespace, metav1.GetOptions{})
		if err == nil && budget.Status.ObservedGeneration != budget.Generation {
			err = fmt.Errorf("status %+v", budget.Status)
		}
		return err
	})
}

func unprotect(t *testing.T, namespace string) {
	t.Helper()
	require.NoError(t, env.NodeKube.PolicyV1().PodDisruptionBudgets(namespace).Delete(t.Context(), namespace, metav1.DeleteOptions{}))
}

// onlyNode returns the only Node of a group.
func onlyNode(t *testing.T, name string) corev1.Node {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), name)
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	return nodes[0]
}

// untilNoNodes waits until a group has no Nodes.
func untilNoNodes(t *testing.T, name string) {
	t.Helper()
	testcluster.Eventually(t, timeout, name+" has no Nodes", func(ctx context.Context) error {
		nodes, err := env.Nodes(ctx, name)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("%d are left", len(nodes))
		}
		return err
	})
}

// expectInstance fails unless the shard has the instance of a group and has not begun to
// delete it.
func expectInstance(t *testing.T, name, instance string) {
	t.Helper()
	reported, err := env.Group(t.Context(), shard, name)
	require.NoError(t, err)
	require.NotNil(t, reported)
	require.True(t, slices.ContainsFunc(reported.GetInstances().GetInstances(), func(i *nstancev1.ManagedInstance) bool {
		return i.GetId() == instance && !strings.Contains(strings.ToLower(i.GetStatus()), "terminat")
	}), "the shard has %v, want %s", reported.GetInstances(), instance)
}

func expectPodDeleted(t *testing.T, namespace, name string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "the Pod is deleted", func(ctx context.Context) error {
		_, err := env.NodeKube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return testcluster.NotFound("the Pod", err)
	})
}

// countEvents returns the number of events of a reason about a Node in the workload cluster.
func countEvents(ctx context.Context, node, reason string) (int, error) {
	list, err := env.NodeKube.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	count := 0
	for _, event := range list.Items {
		if event.Regarding.Name == node && event.Reason == reason {
			count++
		}
	}
	return count, nil
}

// end returns the present end of the audit log of a control plane.
func end(t *testing.T, cp *controlplane.ControlPlane) controlplane.Position {
	t.Helper()
	position, err := cp.AuditLog().End()
	require.NoError(t, err)
	return position
}

// operatorRequests returns the requests of the operator to a control plane since a position,
// such as "create pods/eviction", each once.
func operatorRequests(t *testing.T, cp *controlplane.ControlPlane, from controlplane.Position) []string {
	t.Helper()
	requests, err := cp.AuditLog().Requests(from, func(r controlplane.Request) bool { return r.User == installation.OperatorUser })
	require.NoError(t, err)
	var found []string
	for _, r := range requests {
		if resource := r.Resource; resource != "" {
			if r.Subresource != "" {
				resource += "/" + r.Subresource
			}
			found = append(found, r.Verb+" "+resource)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
