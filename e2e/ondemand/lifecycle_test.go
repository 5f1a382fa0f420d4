// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A Pod that requests a machine runs on it, and the machine is deleted with the Pod.
// Only Cluster API drains the Node.
func TestPodGetsMachine(t *testing.T) {
	t.Parallel()
	watchOperator(t)
	newNamespace(t, "life")
	pod := createPod(t, newPod("life", "builder"))
	m := untilRuns(t, pod)
	expectStandalone(t, m, pod)
	expectColumns(t, m)

	from := env.AuditEnd(t)
	deletePod(t, pod)
	untilDeleted(t, m)
	testcluster.Eventually(t, time.Minute, "an event reports who has deleted the Machine", func(ctx context.Context) error {
		count, err := env.CountEvents(ctx, m.name, "DeletingMachine")
		if err == nil && count != 1 {
			err = fmt.Errorf("%d events", count)
		}
		return err
	})
	cordons := env.Writes(t, from, func(w controlplane.Write) bool {
		return w.User == capiUser && w.Verb == "patch" && w.Resource == "nodes" && w.Name == m.node && w.Code < 300
	})
	if len(cordons) == 0 {
		t.Error("Cluster API has not cordoned the Node")
	}
	if left, err := machinesOf(t.Context(), "life"); err != nil || len(left) > 0 {
		t.Errorf("%d NstanceMachines are left, error %v", len(left), err)
	}
}

// untilRuns waits until a Pod runs on a machine of its own, which it returns.
func untilRuns(t *testing.T, pod *corev1.Pod) machine {
	t.Helper()
	var m machine
	testcluster.Eventually(t, 2*time.Minute, "Pod "+pod.Name+" runs on its machine", func(ctx context.Context) (err error) {
		if err := runs(ctx, pod); err != nil {
			return err
		}
		m, err = machineOf(ctx, pod)
		return err
	})
	return m
}

func untilDeleted(t *testing.T, m machine) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "machine "+m.name+" is deleted", m.deleted)
}

// expectStandalone expects that only a label relates a machine to its Pod, and that
// the operator has not changed the Pod.
func expectStandalone(t *testing.T, m machine, pod *corev1.Pod) {
	t.Helper()
	capiMachine, err := env.Machines().Get(t.Context(), m.name, metav1.GetOptions{})
	require.NoError(t, err)
	if _, pool := capiMachine.Labels[clusterv1.MachinePoolNameLabel]; pool || capiMachine.Labels[v1beta1.LabelPodUID] != string(pod.UID) {
		t.Errorf("the Machine has labels %v", capiMachine.Labels)
	}
	for _, owner := range capiMachine.OwnerReferences {
		if owner.Kind != "Cluster" {
			t.Errorf("the Machine has owner %s %s", owner.Kind, owner.Name)
		}
	}
	live, err := env.Kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	require.NoError(t, err)
	if len(live.Finalizers) > 0 || len(live.OwnerReferences) > 0 {
		t.Errorf("the Pod has finalizers %v and owners %v", live.Finalizers, live.OwnerReferences)
	}
}

// expectColumns expects that kubectl prints the status of a machine.
func expectColumns(t *testing.T, m machine) {
	t.Helper()
	printed := env.Kubectl(t, "get", "nsm/"+m.name, "--output", "wide")
	heading, row, _ := strings.Cut(printed, "\n")
	wantHeading := []string{"NAME", "GROUP", "SHARD", "INSTANCEID", "PROVIDERID", "READY", "REASON", "AGE"}
	wantRow := []string{m.name, group, m.shard, m.instance, fmt.Sprintf("kwok:///%s/%s", m.shard, m.instance), "True"}
	cells := strings.Fields(row)
	if !slices.Equal(strings.Fields(heading), wantHeading) || len(cells) < len(wantRow)+2 || !slices.Equal(cells[:len(wantRow)], wantRow) {
		t.Errorf("kubectl prints\n%swant %v and an age", printed, wantRow)
	}
}

// A Pod can be deleted while no operator runs; its machine is deleted later.
func TestPodDeletedWithoutOperator(t *testing.T) {
	watchOperator(t)
	newNamespace(t, "without-operator")
	pod := createPod(t, newPod("without-operator", "builder"))
	m := untilRuns(t, pod)
	testcluster.Stop(t, env.OperatorProcess())
	deletePod(t, pod)
	if err := machineCount(t.Context(), "without-operator", 1); err != nil {
		t.Errorf("without the operator: %v", err)
	}
	testcluster.Start(t, env.OperatorProcess())
	untilDeleted(t, m)
}

// The machine of a completed Pod is deleted, even if the Pod object is kept.
func TestFinishedPod(t *testing.T) {
	t.Parallel()
	watchOperator(t)
	newNamespace(t, "finished")
	pod := newPod("finished", "builder")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod = createPod(t, pod)
	m := untilRuns(t, pod)
	finishPod(t, pod)
	untilDeleted(t, m)
}

// A Pod that is recreated with the same name is another Pod, and gets another
// machine.
func TestPodIsRecreated(t *testing.T) {
	t.Parallel()
	watchOperator(t)
	const namespace, name = "again", "builder"
	newNamespace(t, namespace)
	labels := map[string]string{"app": name}
	template := newPod(namespace, name+"-0")
	template.Labels = labels
	_, err := env.Kube.AppsV1().StatefulSets(namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: template.Annotations},
				Spec:       template.Spec,
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	// current waits until the present Pod runs on a machine other than not.
	current := func(not machine) (m machine) {
		t.Helper()
		testcluster.Eventually(t, 2*time.Minute, "the Pod runs on its machine", func(ctx context.Context) error {
			pod, err := env.Kube.CoreV1().Pods(namespace).Get(ctx, template.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if err := runs(ctx, pod); err != nil {
				return err
			}
			if m, err = machineOf(ctx, pod); err == nil && m.name == not.name {
				err = fmt.Errorf("it is on the old machine %s", m.name)
			}
			return err
		})
		return m
	}
	first := current(machine{})
	err = env.Kube.CoreV1().Pods(namespace).Delete(t.Context(), template.Name, metav1.DeleteOptions{})
	require.NoError(t, err)
	second := current(first)
	untilDeleted(t, first)
	if err := second.running(t.Context()); err != nil {
		t.Errorf("the second machine: %v", err)
	}
	// The scheduler may have placed a Pod on the first Node before that was cordoned. That Pod
	// is evicted and had a machine too.
	testcluster.Eventually(t, 2*time.Minute, "only the second machine is left", func(ctx context.Context) error {
		return machineCount(ctx, namespace, 1)
	})
}

// Without changes, the operator writes nothing on a resync: with running machines, a machine that
// stays pending, and a Pod whose request cannot be fulfilled.
func TestQuietWhenIdle(t *testing.T) {
	const namespace, running = "quiet", 3
	watchOperator(t)
	newNamespace(t, namespace)
	pending := newPod(namespace, "pending")
	pending.Annotations[v1beta1.AnnotationOnDemandInstanceType] = unavailable
	pending = createPod(t, pending)
	var builders []*corev1.Pod
	for i := range running {
		builders = append(builders, createPod(t, newPod(namespace, fmt.Sprintf("builder-%d", i))))
	}
	for _, builder := range builders {
		untilRuns(t, builder)
	}
	testcluster.Eventually(t, time.Minute, "the last machine has an instance", func(ctx context.Context) error {
		m, err := machineOf(ctx, pending)
		if err == nil && m.instance == "" {
			err = fmt.Errorf("machine %s has no instance", m.name)
		}
		return err
	})
	impossible := newPod(namespace, "impossible")
	impossible.Annotations[v1beta1.AnnotationOnDemandGroup] = "nowhere"
	createPod(t, impossible)
	for pod, reason := range map[string]string{"impossible": "UnknownGroup", "pending": v1beta1.ReasonProviderError} {
		testcluster.Eventually(t, time.Minute, "Pod "+pod+" has an event", func(ctx context.Context) error {
			events, err := podEvents(ctx, namespace, reason)
			if err != nil {
				return err
			}
			return oneEvent(events[pod])
		})
	}

	// The syncs that the operator's own writes trigger come first.
	env.UntilQueued(t, time.Minute, "machine", 2*(running+1))
	from, begin := env.AuditEnd(t), time.Now()
	env.UntilQueued(t, time.Minute, "machine", 2*(running+1))
	t.Logf("watched for %s", time.Since(begin).Round(time.Second))
	if written := env.OperatorWrites(t, from); len(written) > 0 {
		t.Errorf("%d writes while nothing changed:%s", len(written), testcluster.Describe(written))
	}
}

// restartOperator runs the operator with more flags until the end of the test. The
// last value of a flag counts.
func restartOperator(t *testing.T, flags ...string) {
	t.Helper()
	operator := env.OperatorProcess()
	before := operator.Argv
	restart := func(ctx context.Context, argv []string) {
		operator.Argv = argv
		require.NoError(t, operator.Stop(ctx))
		require.NoError(t, operator.Start(ctx))
	}
	t.Cleanup(func() { restart(context.WithoutCancel(t.Context()), before) })
	restart(t.Context(), append(slices.Clip(before), flags...))
}
