// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/instance/kwok"
)

// Which Pods leave a Node whose machine is impaired, and by what means, depends on
// what they are. The machine is not acknowledged before they have left.
func TestPodKinds(t *testing.T) {
	t.Parallel()
	const name = "kinds"
	node := createGroup(t, steadyShard, name, 1)[0]
	createNamespace(t, name)

	createDaemonSet(t, name, "daemon")
	createDeployment(t, name, "web", 3)
	mirror := newPod(name, "mirror", node)
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "mirror"}
	emptyDir := newPod(name, "empty-dir", node)
	emptyDir.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	createPods(t, newPod(name, "ownerless", node), emptyDir, mirror, newPod(name, "finished", node))
	finish(t, name, "finished")
	createBudget(t, name, "web", policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: selector("web"),
	}, 1)
	owned := func(app string) []string {
		t.Helper()
		var names []string
		pods, err := podsOn(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods {
			if pod.Labels["app"] == app {
				names = append(names, pod.Name)
			}
		}
		return names
	}
	daemons, web := owned("daemon"), owned("web")

	from := auditEnd(t)
	setProviderStatus(t, node, kwok.StatusImpaired)
	d := untilDrained(t, node)

	for _, tc := range []struct {
		kind   string
		pods   []string
		count  int
		leaves bool
	}{
		{"of a DaemonSet", daemons, 1, false},
		{"mirror", []string{"mirror"}, 1, false},
		{"finished", []string{"finished"}, 1, false},
		{"of a Deployment with a budget", web, 3, true},
		{"that nothing will replace", []string{"ownerless"}, 1, true},
		{"with an emptyDir", []string{"empty-dir"}, 1, true},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			if len(tc.pods) != tc.count {
				t.Fatalf("there were Pods %v, want %d", tc.pods, tc.count)
			}
			for _, pod := range tc.pods {
				there := slices.ContainsFunc(d.Acknowledged[0].Pods, func(p corev1.Pod) bool { return p.Name == pod })
				tries := evictions(t, from, name, pod)
				if there == tc.leaves || len(tries) > 0 != tc.leaves {
					t.Errorf("Pod %s: on the Node %t, %d tries to evict it; want it to leave: %t", pod, there, len(tries), tc.leaves)
				}
			}
		})
	}
	deletions := operatorRequests(t, from, func(r controlplane.Request) bool {
		return r.Verb == "delete" && r.Resource == "pods"
	})
	if len(deletions) > 0 {
		t.Errorf("the operator deleted Pods without asking budgets: %v", deletions)
	}
	if lost := env.losses.on(node); len(lost) > 0 {
		t.Errorf("Pods were cut off: %v", lost)
	}
}

// When a group gets smaller, what ran on the machines that go runs on the others.
func TestScaleDown(t *testing.T) {
	t.Parallel()
	const name = "smaller"
	nodes := createGroup(t, steadyShard, name, 4)
	createNamespace(t, name)
	createDeployment(t, name, "web", 8)
	createBudget(t, name, "web", policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: selector("web"),
	}, 1)
	scale(t, name, 2)
	// The oldest go.
	for _, node := range nodes[:2] {
		untilDrained(t, node)
	}
	if left := readyNodes(t, name, 2); !slices.Equal(left, nodes[2:]) {
		t.Errorf("Nodes %v are left, want %v", left, nodes[2:])
	}
	eventually(t, "all Pods run on what is left", func(ctx context.Context) error {
		pods, err := env.kube.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
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
	if lost := env.losses.on(nodes...); len(lost) > 0 {
		t.Errorf("Pods were cut off: %v", lost)
	}
	eventually(t, "no drain goes on", func(ctx context.Context) error {
		condition, err := progress(ctx, steadyShard, name)
		if err == nil && (condition.Status != metav1.ConditionTrue || condition.Reason != v1beta1.ReasonNoDrains) {
			err = fmt.Errorf("condition %+v", condition)
		}
		return err
	})
}

// createDaemonSet makes a DaemonSet for the Nodes of the group that has the name
// of the namespace, and returns when its Pods run on all of them.
func createDaemonSet(t testing.TB, namespace, name string) {
	t.Helper()
	sets := env.kube.AppsV1().DaemonSets(namespace)
	_, err := sets.Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DaemonSetSpec{Selector: selector(name), Template: template(namespace, name)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "DaemonSet "+name+" runs", func(ctx context.Context) error {
		set, err := sets.Get(ctx, name, metav1.GetOptions{})
		if err == nil && (set.Status.DesiredNumberScheduled == 0 || set.Status.NumberReady < set.Status.DesiredNumberScheduled) {
			err = fmt.Errorf("status %+v", set.Status)
		}
		return err
	})
}

// createDeployment makes a Deployment for the Nodes of the group that has the name
// of the namespace, and returns when its Pods run.
func createDeployment(t testing.TB, namespace, name string, replicas int32) {
	t.Helper()
	deployments := env.kube.AppsV1().Deployments(namespace)
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector(name), Template: template(namespace, name)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "Deployment "+name+" runs", func(ctx context.Context) error {
		deployment, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if err == nil && deployment.Status.AvailableReplicas != replicas {
			err = fmt.Errorf("status %+v", deployment.Status)
		}
		return err
	})
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func template(group, app string) corev1.PodTemplateSpec {
	spec := podSpec("")
	spec.NodeSelector = map[string]string{v1beta1.LabelGroup: group}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: spec}
}

// finish lets a Pod have done its work. Something keeps it from being deleted, so
// that whoever waited for that would wait for ever.
func finish(t testing.TB, namespace, name string) {
	t.Helper()
	patchPod(t, namespace, name, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, keep))
	patchPod(t, namespace, name, `{"status":{"phase":"Succeeded"}}`, "status")
}

func patchPod(t testing.TB, namespace, name, patch string, subresources ...string) {
	t.Helper()
	_, err := env.kube.CoreV1().Pods(namespace).
		Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		t.Fatal(err)
	}
}
