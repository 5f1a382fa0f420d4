// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// A Pod whose request cannot be fulfilled has one event that names the mistake, and gets no
// machine. It gets a machine if its group is created later.
func TestPodsWithInvalidRequests(t *testing.T) {
	t.Parallel()
	const namespace, later = "impossible", "later"
	watchOperator(t)
	newNamespace(t, namespace)
	tests := map[string]struct {
		annotations map[string]string
		reason      string
		// parts are contained in the note of the event.
		parts []string
	}{
		"bad-group": {
			annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: "No_Group"},
			reason:      "InvalidAnnotation",
			parts:       []string{v1beta1.AnnotationOnDemandGroup, "No_Group"},
		},
		"long-instance-type": {
			annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group, v1beta1.AnnotationOnDemandInstanceType: strings.Repeat("x", 129)},
			reason:      "InvalidAnnotation",
			parts:       []string{v1beta1.AnnotationOnDemandInstanceType, "128"},
		},
		"no-instance-type": {
			annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group, v1beta1.AnnotationOnDemandInstanceType: ""},
			reason:      "InvalidAnnotation",
			parts:       []string{v1beta1.AnnotationOnDemandInstanceType},
		},
		"unknown-group": {
			annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: later},
			reason:      "UnknownGroup",
			parts:       []string{"no shard has a group", later},
		},
	}
	pods := map[string]*corev1.Pod{}
	for name, tc := range tests {
		pod := newPod(namespace, name)
		pod.Annotations = maps.Clone(tc.annotations)
		pods[name] = createPod(t, pod)
	}
	eventsReported := func(ctx context.Context) error {
		for name, tc := range tests {
			events, err := podEvents(ctx, namespace, tc.reason)
			if err != nil {
				return err
			}
			if err := oneEvent(events[name]); err != nil {
				return fmt.Errorf("pod %s, %s: %w", name, tc.reason, err)
			}
			for _, part := range tc.parts {
				if note := events[name][0].Note; !strings.Contains(note, part) {
					return fmt.Errorf("pod %s has event %q, without %q", name, note, part)
				}
			}
		}
		return nil
	}
	testcluster.Eventually(t, time.Minute, "every Pod has its event", eventsReported)
	if err := machineCount(t.Context(), namespace, 0); err != nil {
		t.Error(err)
	}

	createGroup(t, later)
	m := untilRuns(t, pods["unknown-group"])
	if err := machineCount(t.Context(), namespace, 1); err != nil {
		t.Error(err)
	}
	if err := eventsReported(t.Context()); err != nil {
		t.Error(err)
	}
	// The group is deleted after its instances.
	deletePod(t, pods["unknown-group"])
	untilDeleted(t, m)
}

// createGroup creates a group on all shards until the end of the test, as a user
// does: with a pool that has no instances.
func createGroup(t *testing.T, name string) {
	t.Helper()
	pools := env.NstanceMachinePools()
	pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
	pool.Spec.Template = installation.OnDemandTemplate
	_, err := pools.Create(t.Context(), pool, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		// Cluster API deletes the pool with the MachinePool that the operator created.
		err := env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		testcluster.Eventually(t, time.Minute, "pool "+name+" is deleted", func(ctx context.Context) error {
			_, err := pools.Get(ctx, name, metav1.GetOptions{})
			return testcluster.NotFound("the pool", err)
		})
	})
}

// A DaemonSet whose Pods have the annotation creates no machines, and neither does a running Pod
// that gets the annotation. Each machine would get a Pod of the DaemonSet, which would request the
// next machine without an end.
func TestPodsThatNeedNoMachine(t *testing.T) {
	t.Parallel()
	const namespace, nodes, name = "ineligible", 3, "logs"
	watchOperator(t)
	newNamespace(t, namespace)
	var builders []*corev1.Pod
	for i := range nodes {
		builders = append(builders, createPod(t, newPod(namespace, fmt.Sprintf("builder-%d", i))))
	}
	var node string
	for _, builder := range builders {
		node = untilRuns(t, builder).node
	}

	labels := map[string]string{"app": name}
	_, err := env.Kube.AppsV1().DaemonSets(namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{installation.LabelPodNamespace: namespace},
					Containers:   []corev1.Container{{Name: "main", Image: "none"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "each Pod of the DaemonSet has an event", func(ctx context.Context) error {
		events, err := podEvents(ctx, namespace, "InvalidAnnotation")
		if err != nil {
			return err
		}
		for pod, about := range events {
			if err := oneEvent(about); err != nil {
				return fmt.Errorf("pod %s: %w", pod, err)
			}
		}
		if len(events) != nodes {
			return fmt.Errorf("%d Pods have events, want %d", len(events), nodes)
		}
		return nil
	})

	running := newPod(namespace, "running")
	running.Annotations = nil
	running.Spec.NodeSelector = nil
	running.Spec.NodeName = node
	running = createPod(t, running)
	_, err = env.Kube.CoreV1().Pods(namespace).Patch(t.Context(), running.Name, mergePatch,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1beta1.AnnotationOnDemandGroup, group), metav1.PatchOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "the running Pod has an event", func(ctx context.Context) error {
		events, err := podEvents(ctx, namespace, "AlreadyBound")
		if err == nil && len(events["running"]) != 1 {
			err = fmt.Errorf("%d events, want 1", len(events["running"]))
		}
		return err
	})
	assert.NoError(t, machineCount(t.Context(), namespace, nodes))
}

// However many Pods request machines at once, there are never more machines than
// allowed, and each rejected Pod has one event. A deleted machine makes room.
func TestLimit(t *testing.T) {
	const namespace, reason = "limited", "OnDemandLimit"
	pods, limit := tier.Pick(25, 100), tier.Pick(5, 10)
	watchOperator(t)
	restartOperator(t, fmt.Sprintf("--on-demand-limit=%d", limit))
	newNamespace(t, namespace)
	from := env.AuditEnd(t)
	created := func() int {
		return len(env.OperatorRequests(t, from, func(r controlplane.Request) bool {
			return r.Resource == "nstancemachines" && r.Subresource == "" && r.Code == http.StatusCreated
		}))
	}
	createPods(t, namespace, pods)
	rejectedOnce := func(ctx context.Context) error {
		events, err := podEvents(ctx, namespace, reason)
		if err != nil {
			return err
		}
		for name, about := range events {
			if err := oneEvent(about); err != nil {
				return fmt.Errorf("pod %s: %w", name, err)
			}
			for _, part := range []string{namespace, group, fmt.Sprint(limit)} {
				if !strings.Contains(about[0].Note, part) {
					return fmt.Errorf("%q does not name %s", about[0].Note, part)
				}
			}
		}
		if len(events) != pods-limit {
			return fmt.Errorf("%d Pods have events, want %d", len(events), pods-limit)
		}
		return nil
	}
	testcluster.Eventually(t, 2*time.Minute, "the limit is reached and every other Pod has an event", func(ctx context.Context) error {
		return errors.Join(machineCount(ctx, namespace, limit), rejectedOnce(ctx))
	})
	if count := created(); count != limit {
		t.Errorf("%d NstanceMachines were created, want %d", count, limit)
	}

	list, err := machinesOf(t.Context(), namespace)
	require.NoError(t, err)
	first := map[string]bool{}
	for _, m := range list {
		first[m.Name] = true
	}
	deleted := list[0].Annotations[v1beta1.AnnotationPodName]
	deletePod(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: deleted}})
	testcluster.Eventually(t, 2*time.Minute, "another Pod gets a machine in place of "+deleted, func(ctx context.Context) error {
		now, err := machinesOf(ctx, namespace)
		if err != nil {
			return err
		}
		others := 0
		for _, m := range now {
			if !first[m.Name] {
				others++
			}
		}
		if others != 1 {
			return fmt.Errorf("%d other machines", others)
		}
		return machineCount(ctx, namespace, limit)
	})
	if err := rejectedOnce(t.Context()); err != nil {
		t.Error(err)
	}
	if count := created(); count != limit+1 {
		t.Errorf("%d NstanceMachines were created, want %d", count, limit+1)
	}
}
