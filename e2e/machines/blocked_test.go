// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Groups whose pools the operator imports. Each is on one shard.
const (
	budgetGroup      = "budget"
	hungGroup        = "hung"
	finalizerGroup   = "finalizer"
	unstoppableGroup = "unstoppable"
)

// staticGroups are the groups of a shard's configuration.
func staticGroups(shard string) map[string]installation.Group {
	switch shard {
	case shardIDs[0]:
		return map[string]installation.Group{budgetGroup: {}, rotatedGroup: {}}
	case shardIDs[1]:
		// The timeout is long enough for a report of a blocked drain, and shorter than the time
		// until a Node with a hanging kubelet is not Ready.
		return map[string]installation.Group{hungGroup: {DrainTimeout: 35 * time.Second}, rotatedGroup: {}}
	default:
		return map[string]installation.Group{finalizerGroup: {}, unstoppableGroup: {}, joinsGroup: {}, rotatedGroup: {}}
	}
}

// A drain that a disruption budget blocks reports that, and completes when the budget is deleted.
func TestDrainWaitsForABudget(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	const name = budgetGroup
	pod := newPodOnStaticPool(t, name, func(*corev1.Pod) {})
	createBudget(t, name, 0)

	env.Scale(t, name, 0)
	untilBlocked(t, shardIDs[0], name, "Pod "+name+"/web cannot be evicted, PodDisruptionBudget web")
	untilEvent(t, pod.Spec.NodeName, "PodDisruptionBudget web")
	assert.Empty(t, containers.stopped(t, name), "stopped containers")

	require.NoError(t, env.Kube.PolicyV1().PodDisruptionBudgets(name).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	env.UntilNoNodes(t, 3*time.Minute, name)
	containers.expectCounts(t, name, 1, 1)
	containers.expectDrained(t, name, 1)
}

// A kubelet that hangs does not terminate an evicted Pod. The drain reports that, and ends
// with the drain timeout.
func TestDrainTimesOutForAHungKubelet(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	const name = hungGroup
	pod := newPodOnStaticPool(t, name, func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) })
	require.NoError(t, runInContainer(t.Context(), ids(t, name)[pod.Spec.NodeName], "pkill", "-STOP", "-x", "kubelet"))

	env.Scale(t, name, 0)
	untilBlocked(t, shardIDs[1], name, "Pod "+name+"/web is being deleted and does not terminate")
	untilEvent(t, pod.Spec.NodeName, "Pod "+name+"/web is being deleted")
	assert.Empty(t, containers.stopped(t, name), "stopped containers")

	env.UntilNoNodes(t, 3*time.Minute, name)
	containers.expectCounts(t, name, 1, 1)
	assert.Equal(t, []string{name + "/web Running"}, containers.atStop(pod.Spec.NodeName), "Pods on the Node when its container was stopped")
}

// A Pod whose containers have exited does not block the drain if a finalizer keeps it.
func TestDrainDoesNotWaitForAFinalizer(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	const name = finalizerGroup
	newPodOnStaticPool(t, name, func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/keep"} })

	env.Scale(t, name, 0)
	env.UntilNoNodes(t, 3*time.Minute, name)
	containers.expectCounts(t, name, 1, 1)
	containers.expectDrained(t, name, 1)
	kept := pods(t.Context(), t, name)
	require.Len(t, kept, 1)
	assert.NotNil(t, kept[0].DeletionTimestamp)
}

// A Pod that ignores SIGTERM is killed after its grace period
// (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination), and its
// Node is drained.
func TestDrainKillsAPodThatIgnoresItsTermination(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	const name = unstoppableGroup
	last := followPod(t, name)
	newPodOnStaticPool(t, name, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Args = []string{"-ignore-termination"}
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](8)
	})

	env.Scale(t, name, 0)
	env.UntilNoNodes(t, 3*time.Minute, name)
	containers.expectCounts(t, name, 1, 1)
	containers.expectDrained(t, name, 1)
	const killed = 128 + 9
	statuses := last().Status.ContainerStatuses
	require.Len(t, statuses, 1)
	require.NotNil(t, statuses[0].State.Terminated, "the container of the Pod: %+v", statuses[0].State)
	assert.Equal(t, int32(killed), statuses[0].State.Terminated.ExitCode)
}

// newPodOnStaticPool scales the pool of a static group to one Node, and runs a server there. At
// the end of the test, the pool has no Node.
func newPodOnStaticPool(t *testing.T, pool string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "the group "+pool+" is imported", func(ctx context.Context) error {
		_, err := env.MachinePools().Get(ctx, pool, metav1.GetOptions{})
		return err
	})
	env.Scale(t, pool, 1)
	t.Cleanup(func() { untilScaledToZero(t, pool) })
	env.UntilRunning(t, pool, 1)
	if _, err := env.Kube.CoreV1().Namespaces().Get(t.Context(), pool, metav1.GetOptions{}); err != nil {
		env.CreateNamespace(t, pool)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: webLabels}, Spec: webPod(pool)}
	change(pod)
	client := env.Kube.CoreV1().Pods(pool)
	_, err := client.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = client.Delete(ctx, pod.Name, metav1.DeleteOptions{})
		_, _ = client.Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	})
	return untilPodReady(t, pool, pod.Name)
}

// untilBlocked waits until a shard group reports that its drain is blocked, and why.
func untilBlocked(t *testing.T, shard, name, why string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the blocked drain is reported", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, name, shard)
		if err != nil {
			return err
		}
		condition := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionDrainsProgressing)
		if condition == nil || condition.Status != metav1.ConditionFalse || !strings.Contains(condition.Message, why) ||
			ptr.Deref(group.Status.BlockedReplicas, 0) != 1 {
			return fmt.Errorf("%v blocked drains, condition %+v", group.Status.BlockedReplicas, condition)
		}
		return nil
	})
}

// untilEvent waits for an event about a blocked drain of a Node.
func untilEvent(t *testing.T, node, note string) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "an event of the Node reports what blocks", func(ctx context.Context) error {
		list, err := env.Kube.EventsV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range list.Items {
			if event.Reason == v1beta1.ReasonDrainBlocked && event.Regarding.Name == node && strings.Contains(event.Note, note) {
				return nil
			}
		}
		return fmt.Errorf("%d events, none of them", len(list.Items))
	})
}

// followPod returns a function that returns the last state of the Pod in a namespace,
// which may have been deleted.
func followPod(t *testing.T, namespace string) func() *corev1.Pod {
	t.Helper()
	var mu sync.Mutex
	last := &corev1.Pod{}
	set := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			mu.Lock()
			defer mu.Unlock()
			last = pod
		}
	}
	informer := informers.NewSharedInformerFactoryWithOptions(env.Kube, 0, informers.WithNamespace(namespace)).Core().V1().Pods().Informer()
	require.NoError(t, testcluster.RunInformer(t.Context(), informer, cache.ResourceEventHandlerFuncs{
		AddFunc: set, UpdateFunc: func(_, now any) { set(now) }, DeleteFunc: set,
	}))
	return func() *corev1.Pod {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}
