// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/provider/kwok"
)

// The kind of a Pod decides whether it is evicted from the Node of an impaired instance. The drain
// is not acknowledged before the evicted Pods are deleted.
func TestPodKinds(t *testing.T) {
	t.Parallel()
	const name = "kinds"
	node := createGroup(t, steadyShard, name, 1)[0]
	env.CreateNamespace(t, name)

	createDaemonSet(t, name, "daemon")
	createDeployment(t, name, "web", 3)
	mirror := newPod(name, "mirror", node)
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "mirror"}
	emptyDir := newPod(name, "empty-dir", node)
	emptyDir.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	env.CreatePods(t, timeout, newPod(name, "ownerless", node), emptyDir, mirror, newPod(name, "finished", node))
	finish(t, name, "finished")
	createBudget(t, name, "web", policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: selector("web"),
	}, 1)
	owned := func(app string) []string {
		t.Helper()
		var names []string
		pods, err := env.PodsOn(t.Context(), node)
		require.NoError(t, err)
		for _, pod := range pods {
			if pod.Labels["app"] == app {
				names = append(names, pod.Name)
			}
		}
		return names
	}
	daemons, web := owned("daemon"), owned("web")

	from := env.AuditEnd(t)
	setProviderStatus(t, node, kwok.StatusImpaired)
	d := untilDrained(t, node)

	for _, tc := range []struct {
		kind    string
		pods    []string
		count   int
		evicted bool
	}{
		{kind: "of a DaemonSet", pods: daemons, count: 1, evicted: false},
		{kind: "mirror", pods: []string{"mirror"}, count: 1, evicted: false},
		{kind: "finished", pods: []string{"finished"}, count: 1, evicted: false},
		{kind: "of a Deployment with a budget", pods: web, count: 3, evicted: true},
		{kind: "without a controller", pods: []string{"ownerless"}, count: 1, evicted: true},
		{kind: "with an emptyDir", pods: []string{"empty-dir"}, count: 1, evicted: true},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			if len(tc.pods) != tc.count {
				t.Fatalf("there were Pods %v, want %d", tc.pods, tc.count)
			}
			for _, pod := range tc.pods {
				present := slices.ContainsFunc(d.Acknowledged[0].Pods, func(p corev1.Pod) bool { return p.Name == pod })
				attempts := evictions(t, from, name, pod)
				if present == tc.evicted || len(attempts) > 0 != tc.evicted {
					t.Errorf("Pod %s: on the Node %t, %d attempts to evict it; want it evicted: %t", pod, present, len(attempts), tc.evicted)
				}
			}
		})
	}
	expectNoPodDeletions(t, from)
	env.forcedDeletions.expectNone(t, node)
}

// When a group is scaled down, the Pods on the deleted instances move to the other instances.
func TestScaleDown(t *testing.T) {
	t.Parallel()
	const name = "smaller"
	nodes := createGroup(t, steadyShard, name, 4)
	env.CreateNamespace(t, name)
	createDeployment(t, name, "web", 8)
	createBudget(t, name, "web", policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: selector("web"),
	}, 1)
	testcluster.Eventually(t, timeout, "Pods run on the Nodes that will be drained", func(ctx context.Context) error {
		pods, err := env.Kube.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, node := range nodes[:2] {
			if slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node }) {
				continue
			}
			// The scheduler placed the Pods before it knew that the Node is ready.
			if err := recreatePods(ctx, name, "web"); err != nil {
				return err
			}
			return fmt.Errorf("no Pod is on Node %s", node)
		}
		return nil
	})
	env.Scale(t, name, 2)
	// The oldest instances are deleted.
	for _, node := range nodes[:2] {
		untilDrained(t, node)
	}
	if left := readyNodes(t, name, 2); !slices.Equal(left, nodes[2:]) {
		t.Errorf("Nodes %v are left, want %v", left, nodes[2:])
	}
	testcluster.Eventually(t, timeout, "all Pods run on the remaining Nodes", func(ctx context.Context) error {
		pods, err := env.Kube.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		running := 0
		for _, pod := range pods.Items {
			if pod.Status.Phase == corev1.PodRunning && slices.Contains(nodes[2:], pod.Spec.NodeName) {
				running++
			}
		}
		if running != 8 || len(pods.Items) != 8 {
			return fmt.Errorf("%d of %d run there", running, len(pods.Items))
		}
		return nil
	})
	env.forcedDeletions.expectNone(t, nodes...)
	testcluster.Eventually(t, timeout, "no drain is left", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, name, steadyShard)
		if err != nil {
			return err
		}
		// Drains that were over before a report leave no condition.
		condition := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionDrainsProgressing)
		if ptr.Deref(group.Status.DrainingReplicas, -1) != 0 || condition != nil && condition.Reason != v1beta1.ReasonNoDrains {
			return fmt.Errorf("draining %v, condition %+v", ptr.Deref(group.Status.DrainingReplicas, -1), condition)
		}
		return nil
	})
}

// createDaemonSet creates a DaemonSet for the Nodes of the group that has the name
// of the namespace, and returns when its Pods run on all of them.
func createDaemonSet(t testing.TB, namespace, name string) {
	t.Helper()
	sets := env.Kube.AppsV1().DaemonSets(namespace)
	_, err := sets.Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DaemonSetSpec{Selector: selector(name), Template: template(namespace, name)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "DaemonSet "+name+" runs", func(ctx context.Context) error {
		set, err := sets.Get(ctx, name, metav1.GetOptions{})
		if err == nil && (set.Status.DesiredNumberScheduled == 0 || set.Status.NumberReady < set.Status.DesiredNumberScheduled) {
			err = fmt.Errorf("status %+v", set.Status)
		}
		return err
	})
}

// createDeployment creates a Deployment for the Nodes of the group that has the name
// of the namespace, and returns when its Pods run.
func createDeployment(t testing.TB, namespace, name string, replicas int32) {
	t.Helper()
	deployments := env.Kube.AppsV1().Deployments(namespace)
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector(name), Template: template(namespace, name)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "Deployment "+name+" runs", func(ctx context.Context) error {
		deployment, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if err == nil && deployment.Status.AvailableReplicas != replicas {
			err = fmt.Errorf("status %+v", deployment.Status)
		}
		return err
	})
}

// recreatePods deletes the Pods of a Deployment once all are available, so that they are
// scheduled again.
func recreatePods(ctx context.Context, namespace, name string) error {
	deployment, err := env.Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil || deployment.Status.AvailableReplicas != *deployment.Spec.Replicas {
		return err
	}
	return env.Kube.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector(name))})
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func template(group, app string) corev1.PodTemplateSpec {
	spec := podSpec("")
	spec.NodeSelector = map[string]string{v1beta1.LabelGroup: group}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: spec}
}

// finish completes a Pod. A finalizer keeps it from being deleted, so that waiting
// for its deletion would never return.
func finish(t testing.TB, namespace, name string) {
	t.Helper()
	patchPod(t, namespace, name, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, testFinalizer))
	patchPod(t, namespace, name, `{"status":{"phase":"Succeeded"}}`, "status")
}

func patchPod(t testing.TB, namespace, name, patch string, subresources ...string) {
	t.Helper()
	_, err := env.Kube.CoreV1().Pods(namespace).
		Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	require.NoError(t, err)
}

// A guarded pool is scaled down one instance at a time. While a budget blocks a drain, the pool
// reports that and no other instance is drained; then it continues.
func TestGuardedScaleDown(t *testing.T) {
	t.Parallel()
	const name, before, after = "guarded", 6, 2
	nodes := createGroup(t, steadyShard, name, before)
	_, err := env.NstanceMachinePools().Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"spec":{"scaleDown":{"maxInFlight":1,"pauseWhile":["DrainBlocked"]}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	env.CreateNamespace(t, name)
	// The oldest instance is removed first.
	blocking := newPod(name, "pod-0", nodes[0])
	env.CreatePods(t, timeout, blocking)
	protect(t, name, blocking.Name)

	watching, stop := context.WithCancel(t.Context())
	most := make(chan int, 1)
	go func() { most <- mostRemovedAtOnce(watching, name) }()

	env.Scale(t, name, after)
	testcluster.Eventually(t, timeout, "the pool reports that a drain blocks its scale-down", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionScalingDown, metav1.ConditionTrue, v1beta1.ReasonDrainBlocked)
	})
	ofGroup := func(d *drain) bool { return d.Group == name }
	if drains := env.drains[steadyShard].matching(ofGroup); len(drains) != 1 || drains[0].Instance != nodes[0] {
		t.Errorf("while the first drain is blocked there are these: %+v", drains)
	}
	unprotect(t, name, blocking.Name)
	testcluster.Eventually(t, timeout, "the pool is scaled down", func(ctx context.Context) error {
		return errors.Join(env.SizesAre(ctx, name, after), scaledDown(ctx, name))
	})
	stop()

	if n := <-most; n != 1 {
		t.Errorf("up to %d instances were removed at once, want 1", n)
	}
	drains := env.drains[steadyShard].matching(ofGroup)
	if len(drains) != before-after {
		t.Errorf("%d instances were drained, want %d", len(drains), before-after)
	}
	for i := 1; i < len(drains); i++ {
		if previous := drains[i-1]; previous.Deleted.IsZero() || drains[i].Reported.Before(previous.Deleted) {
			t.Errorf("the drain of %s began at %s, before that of %s ended at %s", drains[i].Instance, drains[i].Reported.Format(time.TimeOnly),
				previous.Instance, previous.Deleted.Format(time.TimeOnly))
		}
	}
	count, err := env.CountEvents(t.Context(), name, "ScaleDownBlocked")
	require.NoError(t, err)
	if count != 1 {
		t.Errorf("%d events report that the scale-down was blocked, want 1", count)
	}
}

// scaledDown succeeds when a pool has settled.
func scaledDown(ctx context.Context, name string) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	return testcluster.Settled(pool)
}

// mostRemovedAtOnce returns how many instances the server had at most beyond the size of a
// group, until ctx is done: they are being drained or terminated.
func mostRemovedAtOnce(ctx context.Context, name string) (most int) {
	for ctx.Err() == nil {
		group, err := env.Group(ctx, steadyShard, name)
		if err == nil && group != nil {
			most = max(most, len(group.GetInstances().GetInstances())-int(group.GetSize()))
		}
	}
	return most
}
