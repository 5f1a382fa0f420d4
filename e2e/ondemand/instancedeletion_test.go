// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// hook keeps Cluster API from deleting the infrastructure of a Machine.
const hook = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/test"

// deletion deletes the instance of a machine in a state.
type deletion struct {
	// state is the state of the machine, and its name.
	state        string
	instanceType string
	// prepare brings the machine into its state. Optional.
	prepare func(*testing.T, machine)
	// deleteInstance deletes the instance, by default on the shard.
	deleteInstance func(*testing.T, machine)
	// finish ends the state after the instance was deleted. Optional.
	finish func(*testing.T, machine)
}

// happen creates the machine and deletes its instance. It returns the errors that Cluster API
// logs from then on.
func (d deletion) happen(t *testing.T) capiErrors {
	t.Helper()
	createMachine(t, d.state, d.instanceType)
	m := untilCreated(t, d.state)
	if d.prepare != nil {
		d.prepare(t, m)
	}
	since := newCAPIErrors(t, m)
	if d.deleteInstance != nil {
		d.deleteInstance(t, m)
	} else {
		m.deleteOnShard(t)
	}
	if d.finish != nil {
		d.finish(t, m)
	}
	untilDeleted(t, m)
	t.Logf("until then Cluster API logged %d errors", len(since.lines(t)))
	return newCAPIErrors(t, m)
}

// If the instance of a machine is deleted on the shard, in whatever state the machine is, no
// object of it is left in Kubernetes, and Cluster API logs no error from then on.
func TestInstanceDeletedOnShard(t *testing.T) {
	watchOperator(t)
	deletions := []deletion{
		{state: "pending", instanceType: unavailable},
		{state: "running", prepare: untilRunning},
		// An instance that disappears at the provider is deleted by the shard.
		{state: "vanished", prepare: untilRunning, deleteInstance: deleteNode},
		{
			state: "deleting",
			prepare: func(t *testing.T, m machine) {
				annotate(t, m, hook, `"test"`)
				untilRunning(t, m)
				deleteMachine(t, m, metav1.DeletePropagationBackground)
			},
			finish: func(t *testing.T, m machine) {
				testcluster.Eventually(t, time.Minute, "the instance is deleted", m.instanceDeleted)
				annotate(t, m, hook, "null")
			},
		},
		{
			state: "orphaned",
			prepare: func(t *testing.T, m machine) {
				untilRunning(t, m)
				orphan(t, m)
			},
		},
	}
	errorsAfter := make([]capiErrors, len(deletions))
	t.Run("with the operator", func(t *testing.T) {
		for i, deletion := range deletions {
			t.Run(deletion.state, func(t *testing.T) {
				t.Parallel()
				errorsAfter[i] = deletion.happen(t)
			})
		}
	})
	t.Run("without the operator", func(t *testing.T) {
		errorsAfter = append(errorsAfter, deletion{
			state: "without-operator",
			prepare: func(t *testing.T, m machine) {
				untilRunning(t, m)
				testcluster.Stop(t, env.OperatorProcess())
			},
			finish: func(t *testing.T, m machine) {
				testcluster.Eventually(t, time.Minute, "the instance is deleted", m.instanceDeleted)
				testcluster.Start(t, env.OperatorProcess())
			},
		}.happen(t))
	})
	// The lifecycle of one more machine is time enough for Cluster API's retries.
	createMachine(t, "last", "")
	last := untilCreated(t, "last")
	untilRunning(t, last)
	deleteMachine(t, last, metav1.DeletePropagationBackground)
	untilDeleted(t, last)
	for _, logged := range errorsAfter {
		if lines := logged.lines(t); len(lines) > 0 {
			t.Errorf("%s: Cluster API has logged %d errors after the deletion:\n%s", logged.machine, len(lines), bytes.Join(lines, []byte("\n")))
		}
	}
}

// untilCreated waits until the status of a machine names its instance.
func untilCreated(t *testing.T, name string) (m machine) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "machine "+name+" has an instance", func(ctx context.Context) (err error) {
		if m, err = getMachine(ctx, name); err == nil && m.instance == "" {
			err = errors.New("it has no instance id")
		}
		return err
	})
	return m
}

func untilRunning(t *testing.T, m machine) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "machine "+m.name+" runs", m.running)
}

// annotate sets an annotation of a Machine to a JSON value.
func annotate(t *testing.T, m machine, annotation, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value)
	_, err := env.ClusterAPI("machines").Patch(t.Context(), m.name, mergePatch, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

func deleteMachine(t *testing.T, m machine, propagation metav1.DeletionPropagation) {
	t.Helper()
	err := env.ClusterAPI("machines").Delete(t.Context(), m.name, metav1.DeleteOptions{PropagationPolicy: &propagation})
	require.NoError(t, err)
}

// untilCollected waits until the garbage collector knows the NstanceMachines: it looks for new
// kinds twice a minute. Before, it would leave the owner of an orphan, and delete the orphan later.
func untilCollected(t *testing.T, name string) {
	t.Helper()
	_, err := env.NstanceMachines().Create(t.Context(), &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: "none"}},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "none"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, 2*time.Minute, "the garbage collector knows the kind", func(ctx context.Context) error {
		_, err := env.NstanceMachines().Get(ctx, name, metav1.GetOptions{})
		return testcluster.NotFound("the probe", err)
	})
}

// orphan deletes the Machine of an NstanceMachine, which is left without an owner.
// Cluster API ignores a Machine that is paused.
func orphan(t *testing.T, m machine) {
	t.Helper()
	annotate(t, m, clusterv1.PausedAnnotation, `"true"`)
	machines := env.ClusterAPI("machines")
	// Otherwise a reconciliation that has begun before adds the owner again.
	testcluster.Eventually(t, time.Minute, "Cluster API has seen the pause", func(ctx context.Context) error {
		live, err := machines.Get(ctx, m.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var machine clusterv1.Machine
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, &machine); err != nil {
			return err
		}
		return testcluster.HasCondition(machine.Status.Conditions, clusterv1.PausedCondition, metav1.ConditionTrue, clusterv1.PausedReason)
	})
	untilCollected(t, m.name+"-probe")
	deleteMachine(t, m, metav1.DeletePropagationOrphan)
	testcluster.Eventually(t, time.Minute, "the Machine is deleted", func(ctx context.Context) error {
		live, err := machines.Get(ctx, m.name, metav1.GetOptions{})
		if err != nil {
			return testcluster.NotFound("the Machine", err)
		}
		finalizers := slices.DeleteFunc(live.GetFinalizers(), func(f string) bool { return f == clusterv1.MachineFinalizer })
		live.SetFinalizers(finalizers)
		_, err = machines.Update(ctx, live, metav1.UpdateOptions{})
		return errors.Join(errors.New("it exists"), err)
	})
	ours, err := env.NstanceMachines().Get(t.Context(), m.name, metav1.GetOptions{})
	require.NoError(t, err)
	if len(ours.OwnerReferences) > 0 || ours.DeletionTimestamp != nil {
		t.Fatalf("the NstanceMachine has owners %v, deleted at %v", ours.OwnerReferences, ours.DeletionTimestamp)
	}
}

// deleteNode deletes an instance at the provider.
func deleteNode(t *testing.T, m machine) {
	t.Helper()
	require.NoError(t, env.Kube.CoreV1().Nodes().Delete(t.Context(), m.instance, metav1.DeleteOptions{}))
}

// capiErrors are the errors that Cluster API logs about a machine from a moment on.
type capiErrors struct {
	machine string
	from    int
}

func newCAPIErrors(t *testing.T, m machine) capiErrors {
	t.Helper()
	return capiErrors{machine: m.name, from: len(capiLog(t))}
}

func (c capiErrors) lines(t *testing.T) [][]byte {
	t.Helper()
	// klog begins an error with the letter E and the date (https://pkg.go.dev/k8s.io/klog/v2).
	errorLine := regexp.MustCompile(`(?m)^E\d{4} .*"` + installation.Namespace + `/` + regexp.QuoteMeta(c.machine) + `".*$`)
	return errorLine.FindAll(capiLog(t)[c.from:], -1)
}

func capiLog(t *testing.T) []byte {
	t.Helper()
	log, err := os.ReadFile(env.Component(controlplane.CAPI).LogPath())
	require.NoError(t, err)
	return log
}

// A pending Pod whose instance was deleted on its shard gets another machine.
func TestPendingPodGetsAnotherMachine(t *testing.T) {
	t.Parallel()
	watchOperator(t)
	const namespace = "another"
	newNamespace(t, namespace)
	pod := newPod(namespace, "builder")
	// The Pod never runs on the machine, and so stays when the machine is deleted.
	pod.Spec.NodeSelector["example.com/never"] = "true"
	pod = createPod(t, pod)
	var first machine
	testcluster.Eventually(t, time.Minute, "the Pod has a machine", func(ctx context.Context) (err error) {
		if first, err = machineOf(ctx, pod); err != nil {
			return err
		}
		return first.running(ctx)
	})
	first.deleteOnShard(t)
	testcluster.Eventually(t, 2*time.Minute, "the Pod has another machine", func(ctx context.Context) error {
		second, err := machineOf(ctx, pod)
		if err != nil {
			return err
		}
		if second.instance == first.instance {
			return fmt.Errorf("it has instance %s", first.instance)
		}
		return second.running(ctx)
	})
	testcluster.Eventually(t, time.Minute, "the first instance is deleted", first.instanceDeleted)
}

// The machine of a Pod is deleted with the Pod, even if another Pod runs there whose disruption
// budget never allows an eviction.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	const namespace = "stuck"
	watchOperator(t)
	newNamespace(t, namespace)
	owner := newPod(namespace, "owner")
	owner.Annotations[v1beta1.AnnotationOnDemandDrainTimeout] = "10s"
	owner = createPod(t, owner)
	m := untilRuns(t, owner)

	guest := newPod(namespace, "guest")
	guest.Annotations, guest.Labels = nil, map[string]string{"app": "guest"}
	guest.Spec.NodeSelector, guest.Spec.NodeName = nil, m.node
	createPod(t, guest)
	_, err := env.Kube.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "guest"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: guest.Labels},
			MinAvailable: ptr.To(intstr.FromInt32(1)),
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	machine, err := env.Machines().Get(t.Context(), m.name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, ptr.To[int32](10), machine.Spec.Deletion.NodeDrainTimeoutSeconds, "the drain timeout")
	deletePod(t, owner)
	untilDeleted(t, m)
}
