// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A Pod that asks for a machine runs on it, and gives it back with its own end.
// Cluster API drains the Node, and nobody else.
func TestPodHasAMachine(t *testing.T) {
	watchOperator(t)
	newNamespace(t, "life")
	pod := createPod(t, newPod("life", "builder"))
	m := untilRuns(t, pod)
	isStandalone(t, m, pod)
	hasColumns(t, m)

	from := auditEnd(t)
	deletePod(t, pod)
	untilGone(t, m)
	did := func(verb string) bool {
		found, err := env.cp.AuditLog().Writes(from, func(w controlplane.Write) bool {
			return w.User == capiUser && w.Verb == verb && w.Resource == "nodes" && w.Name == m.node && w.Code < 300
		})
		if err != nil {
			t.Fatal(err)
		}
		return len(found) > 0
	}
	if !did("patch") {
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
	eventually(t, 2*time.Minute, "Pod "+pod.Name+" runs on its machine", func(ctx context.Context) (err error) {
		if err := runs(ctx, pod); err != nil {
			return err
		}
		m, err = machineOf(ctx, pod)
		return err
	})
	return m
}

func untilGone(t *testing.T, m machine) {
	t.Helper()
	eventually(t, 2*time.Minute, "nothing is left of machine "+m.name, m.gone)
}

// isStandalone expects that nothing ties a machine to its Pod but a label, and
// that the Pod is as its user made it.
func isStandalone(t *testing.T, m machine, pod *corev1.Pod) {
	t.Helper()
	theirs, err := env.capi.Machines(nstance.Namespace).Get(t.Context(), m.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, pool := theirs.Labels[clusterv1.MachinePoolNameLabel]; pool || theirs.Labels[v1beta1.LabelPodUID] != string(pod.UID) {
		t.Errorf("the Machine has labels %v", theirs.Labels)
	}
	for _, owner := range theirs.OwnerReferences {
		if owner.Kind != "Cluster" {
			t.Errorf("the Machine belongs to %s %s", owner.Kind, owner.Name)
		}
	}
	live, err := env.kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(live.Finalizers) > 0 || len(live.OwnerReferences) > 0 {
		t.Errorf("the Pod has finalizers %v and owners %v", live.Finalizers, live.OwnerReferences)
	}
}

// hasColumns expects that kubectl shows what is known of a machine.
func hasColumns(t *testing.T, m machine) {
	t.Helper()
	arguments := slices.Concat(env.kubectl[1:], []string{"get", "--namespace", nstance.Namespace, "nsm/" + m.name})
	printed, err := exec.CommandContext(t.Context(), env.kubectl[0], arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", arguments, err, printed)
	}
	heading, row, _ := strings.Cut(string(printed), "\n")
	wantHeading := []string{"NAME", "GROUP", "SHARD", "INSTANCEID", "PROVIDERID", "READY", "AGE"}
	wantRow := []string{m.name, group, m.shard, m.instance, fmt.Sprintf("kwok:///%s/%s", m.shard, m.instance), "True"}
	cells := strings.Fields(row)
	if !slices.Equal(strings.Fields(heading), wantHeading) || len(cells) != len(wantHeading) || !slices.Equal(cells[:len(wantRow)], wantRow) {
		t.Errorf("kubectl prints\n%swant %v and an age", printed, wantRow)
	}
}

// Nobody waits for an operator that does not run, and nothing is forgotten.
func TestPodGoesWithoutOperator(t *testing.T) {
	watchOperator(t)
	newNamespace(t, "without-operator")
	pod := createPod(t, newPod("without-operator", "builder"))
	m := untilRuns(t, pod)
	stopOperator(t)
	deletePod(t, pod)
	if err := machineCount(t.Context(), "without-operator", 1); err != nil {
		t.Errorf("without the operator: %v", err)
	}
	startOperator(t)
	untilGone(t, m)
}

// A Pod that has finished needs its machine no longer, whoever keeps the Pod.
func TestFinishedPod(t *testing.T) {
	watchOperator(t)
	newNamespace(t, "finished")
	pod := newPod("finished", "builder")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod = createPod(t, pod)
	m := untilRuns(t, pod)
	finishPod(t, pod)
	untilGone(t, m)
}

// A Pod that is made again under the same name is another Pod, and gets another
// machine.
func TestPodIsMadeAgain(t *testing.T) {
	watchOperator(t)
	const namespace, name = "again", "builder"
	newNamespace(t, namespace)
	labels := map[string]string{"app": name}
	pattern := newPod(namespace, name+"-0")
	pattern.Labels = labels
	_, err := env.kube.AppsV1().StatefulSets(namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: pattern.Annotations},
				Spec:       pattern.Spec,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// present waits until the Pod of the day runs on its own machine.
	present := func(not machine) (m machine) {
		t.Helper()
		eventually(t, 2*time.Minute, "the Pod runs on its machine", func(ctx context.Context) error {
			pod, err := env.kube.CoreV1().Pods(namespace).Get(ctx, pattern.Name, metav1.GetOptions{})
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
	first := present(machine{})
	err = env.kube.CoreV1().Pods(namespace).Delete(t.Context(), pattern.Name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := present(first)
	untilGone(t, first)
	if err := second.running(t.Context()); err != nil {
		t.Errorf("the second machine: %v", err)
	}
	if err := machineCount(t.Context(), namespace, 1); err != nil {
		t.Error(err)
	}
}
