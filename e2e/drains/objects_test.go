// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/provider/kwok"
)

// createGroup creates a pool whose group of the same name is on one shard, and returns the names
// of its Nodes when all of them are ready. Nodes have the names of their instances.
func createGroup(t testing.TB, shard, name string, size int32) []string {
	t.Helper()
	_, err := env.MachinePools().Create(t.Context(), testcluster.NewMachinePool(name, size), metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "the pool is created", func(ctx context.Context) error {
		// The webhook rejects it until the operator knows the shard.
		_, err := env.NstanceMachinePools().Create(ctx, testcluster.NewNstanceMachinePool(name, shard), metav1.CreateOptions{})
		return err
	})
	return readyNodes(t, name, int(size))
}

// readyNodes waits until a group has that many Nodes and all are ready, and
// returns their names, the oldest instance first.
func readyNodes(t testing.TB, group string, count int) []string {
	t.Helper()
	var names []string
	testcluster.Eventually(t, timeout, fmt.Sprintf("group %s has %d ready Nodes", group, count), func(ctx context.Context) error {
		nodes, err := env.Nodes(ctx, group)
		if err != nil {
			return err
		}
		names = nil
		for _, node := range nodes {
			if testcluster.IsReady(node) {
				names = append(names, node.Name)
			}
		}
		if len(nodes) != count || len(names) != count {
			return fmt.Errorf("%d of %d are ready", len(names), len(nodes))
		}
		return nil
	})
	slices.Sort(names) // ids begin with the time
	return names
}

// setProviderStatus sets the provider's status of the instance of a Node, which is
// healthy with "".
func setProviderStatus(t testing.TB, node, status string) {
	t.Helper()
	value := "null"
	if status != "" {
		value = fmt.Sprintf("%q", status)
	}
	patchNode(t, node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, kwok.AnnotationProviderStatus, value))
}

func patchNode(t testing.TB, node, patch string) {
	t.Helper()
	_, err := env.Kube.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

// cordoned succeeds when a Node is unschedulable and annotated with the instance it
// was cordoned for, or with "" when an administrator has cordoned it.
func cordoned(ctx context.Context, node, mark string) error {
	found, err := env.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got := found.Annotations[v1beta1.AnnotationCordonedFor]; !found.Spec.Unschedulable || got != mark {
		return fmt.Errorf("Node %s: unschedulable %t, annotated %q; want it unschedulable and annotated %q", node, found.Spec.Unschedulable, got, mark)
	}
	return nil
}

// progress returns the condition DrainsProgressing of a shard group.
func progress(ctx context.Context, shard, group string) (metav1.Condition, error) {
	found, err := env.ShardGroup(ctx, group, shard)
	if err != nil {
		return metav1.Condition{}, err
	}
	condition := meta.FindStatusCondition(found.Status.Conditions, v1beta1.ConditionDrainsProgressing)
	if condition == nil {
		return metav1.Condition{}, fmt.Errorf("shard group %s has no condition %s", found.Name, v1beta1.ConditionDrainsProgressing)
	}
	return *condition, nil
}

// untilDrained waits until the drain of an instance on the steady shard was
// acknowledged and the instance deleted. It fails the test when the acknowledgement
// came too late, or while there was still a Pod to evict.
func untilDrained(t testing.TB, instance string) drain {
	t.Helper()
	var d drain
	testcluster.Eventually(t, timeout, "the drain is acknowledged and the instance is deleted", func(context.Context) error {
		var known bool
		d, known = env.drains[steadyShard].ofInstance(instance)
		if !known || len(d.Acknowledged) == 0 || d.Deleted.IsZero() {
			return fmt.Errorf("known %t, acknowledged %d times, deleted at %v", known, len(d.Acknowledged), d.Deleted)
		}
		return nil
	})
	expectValidAcknowledgement(t, d)
	return d
}

// expectValidAcknowledgement fails the test unless a drain was acknowledged in
// time, and when nothing was left to evict.
func expectValidAcknowledgement(t testing.TB, d drain) {
	t.Helper()
	if len(d.Acknowledged) == 0 {
		t.Errorf("instance %s was not acknowledged", d.Instance)
	} else if late := d.Acknowledged[0].At.Sub(d.DeleteAt); late >= 0 {
		t.Errorf("instance %s was acknowledged %s too late", d.Instance, late)
	}
	for _, a := range d.Acknowledged {
		for _, pod := range a.Pods {
			if evictable(&pod) {
				t.Errorf("instance %s was acknowledged while Pod %s/%s was on its Node", d.Instance, pod.Namespace, pod.Name)
			}
		}
	}
}

// testFinalizer is a finalizer that only a test removes.
const testFinalizer = "test.nstance.dev/keep"

// newPod returns a Pod that is bound to a Node and that no controller replaces. Its
// label "app" is its name.
func newPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec:       podSpec(node),
	}
}

// podSpec returns the spec of a Pod that is bound to a Node, or is scheduled if node is "".
func podSpec(node string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeName:                     node,
		AutomountServiceAccountToken: ptr.To(false),
		Containers:                   []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}},
	}
}

// budgetOf is the name of the budget of one Pod.
func budgetOf(pod string) string { return "keep-" + pod }

// protect creates a budget that allows no eviction of the Pod of that name, and
// returns when it is in force.
func protect(t testing.TB, namespace, pod string) {
	t.Helper()
	createBudget(t, namespace, budgetOf(pod), policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: selector(pod),
	}, 0)
}

// createBudget creates a budget, and returns when it allows so many disruptions.
func createBudget(t testing.TB, namespace, name string, spec policyv1.PodDisruptionBudgetSpec, allowed int32) {
	t.Helper()
	budgets := env.Kube.PolicyV1().PodDisruptionBudgets(namespace)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	_, err := budgets.Create(t.Context(), budget, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "budget "+name+" is in force", func(ctx context.Context) error {
		found, err := budgets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if found.Status.ObservedGeneration != found.Generation || found.Status.CurrentHealthy < found.Status.DesiredHealthy ||
			found.Status.ExpectedPods == 0 || found.Status.DisruptionsAllowed != allowed {
			return fmt.Errorf("status %+v", found.Status)
		}
		return nil
	})
}

// unprotect changes the budget of a Pod so that it may be evicted.
func unprotect(t testing.TB, namespace, pod string) {
	t.Helper()
	_, err := env.Kube.PolicyV1().PodDisruptionBudgets(namespace).
		Patch(t.Context(), budgetOf(pod), types.MergePatchType, []byte(`{"spec":{"minAvailable":0}}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

// evictable reports whether a drain has to wait until a Pod is deleted. It does not
// wait for Pods that belong to the Node, for completed Pods, and for Pods that it skips.
func evictable(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return false
	}
	if pod.Labels[clusterv1.PodDrainLabel] == "skip" {
		return false
	}
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
