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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

// hook keeps Cluster API from ending a Machine that is being deleted.
const hook = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/test"

// Whatever state a machine is in when its shard ends the instance, nothing is left
// of it in Kubernetes, and Cluster API complains of nothing from then on.
func TestInstanceDeletedOnShard(t *testing.T) {
	watchOperator(t)
	gone := map[string]complaints{}
	for _, tc := range []struct {
		state        string
		instanceType string
		// prepare brings the machine into its state.
		prepare func(*testing.T, machine)
		// end ends the instance, if it is not the shard that is asked to.
		end func(*testing.T, machine)
		// finish is what has to happen after the instance was ended.
		finish func(*testing.T, machine)
	}{
		{state: "pending", instanceType: unavailable},
		{state: "running", prepare: untilRunning},
		// What vanishes at the provider is ended by the shard.
		{state: "vanished", prepare: untilRunning, end: deleteNode},
		{
			state: "deleting",
			prepare: func(t *testing.T, m machine) {
				annotate(t, m, hook, `"held"`)
				untilRunning(t, m)
				deleteMachine(t, m, metav1.DeletePropagationBackground)
			},
			finish: func(t *testing.T, m machine) {
				eventually(t, time.Minute, "the instance is gone", m.ended)
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
		{
			state: "without-operator",
			prepare: func(t *testing.T, m machine) {
				untilRunning(t, m)
				stopOperator(t)
			},
			finish: func(t *testing.T, m machine) {
				eventually(t, time.Minute, "the instance is gone", m.ended)
				startOperator(t)
			},
		},
	} {
		t.Run(tc.state, func(t *testing.T) {
			createMachine(t, tc.state, tc.instanceType)
			m := untilOrdered(t, tc.state)
			if tc.prepare != nil {
				tc.prepare(t, m)
			}
			since := newComplaints(t, m)
			if tc.end != nil {
				tc.end(t, m)
			} else {
				m.deleteOnShard(t)
			}
			if tc.finish != nil {
				tc.finish(t, m)
			}
			untilGone(t, m)
			t.Logf("until then Cluster API logged %d errors", len(since.lines(t)))
			gone[tc.state] = newComplaints(t, m)
		})
	}
	// One more machine's way from its beginning to its end is time enough for what
	// Cluster API might try again.
	createMachine(t, "last", "")
	last := untilOrdered(t, "last")
	untilRunning(t, last)
	deleteMachine(t, last, metav1.DeletePropagationBackground)
	untilGone(t, last)
	for state, complaints := range gone {
		if lines := complaints.lines(t); len(lines) > 0 {
			t.Errorf("%s: Cluster API has logged %d errors after the end:\n%s", state, len(lines), bytes.Join(lines, []byte("\n")))
		}
	}
}

// untilOrdered waits until it is on record which instance a machine has.
func untilOrdered(t *testing.T, name string) (m machine) {
	t.Helper()
	eventually(t, time.Minute, "machine "+name+" has an instance", func(ctx context.Context) (err error) {
		if m, err = getMachine(ctx, name); err == nil && m.instance == "" {
			err = errors.New("it has no instance id")
		}
		return err
	})
	return m
}

func untilRunning(t *testing.T, m machine) {
	t.Helper()
	eventually(t, time.Minute, "machine "+m.name+" runs", m.running)
}

// annotate sets an annotation of a Machine to a JSON value.
func annotate(t *testing.T, m machine, annotation, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value)
	if _, err := clusterAPI("machines").Patch(t.Context(), m.name, mergePatch, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func deleteMachine(t *testing.T, m machine, propagation metav1.DeletionPropagation) {
	t.Helper()
	err := clusterAPI("machines").Delete(t.Context(), m.name, metav1.DeleteOptions{PropagationPolicy: &propagation})
	if err != nil {
		t.Fatal(err)
	}
}

// orphan takes the Machine away from an NstanceMachine, with nobody left whose it
// is. Cluster API does nothing with a Machine that is paused.
func orphan(t *testing.T, m machine) {
	t.Helper()
	annotate(t, m, clusterv1.PausedAnnotation, `"true"`)
	deleteMachine(t, m, metav1.DeletePropagationOrphan)
	machines := clusterAPI("machines")
	eventually(t, time.Minute, "the Machine is gone", func(ctx context.Context) error {
		live, err := machines.Get(ctx, m.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		finalizers := slices.DeleteFunc(live.GetFinalizers(), func(f string) bool { return f == clusterv1.MachineFinalizer })
		live.SetFinalizers(finalizers)
		_, err = machines.Update(ctx, live, metav1.UpdateOptions{})
		return errors.Join(errors.New("it is there"), err)
	})
	ours, err := nstanceMachines().Get(t.Context(), m.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(ours.OwnerReferences) > 0 || ours.DeletionTimestamp != nil {
		t.Fatalf("the NstanceMachine belongs to %v, deleted at %v", ours.OwnerReferences, ours.DeletionTimestamp)
	}
}

// deleteNode has an instance vanish at the provider.
func deleteNode(t *testing.T, m machine) {
	t.Helper()
	if err := env.kube.CoreV1().Nodes().Delete(t.Context(), m.instance, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// complaints are the errors that Cluster API logs of a machine from a moment on.
type complaints struct {
	machine string
	from    int
}

func newComplaints(t *testing.T, m machine) complaints {
	t.Helper()
	return complaints{machine: m.name, from: len(capiLog(t))}
}

func (c complaints) lines(t *testing.T) [][]byte {
	t.Helper()
	// klog begins an error with the letter and the date.
	errorLine := regexp.MustCompile(`(?m)^E\d{4} .*"` + nstance.Namespace + `/` + regexp.QuoteMeta(c.machine) + `".*$`)
	return errorLine.FindAll(capiLog(t)[c.from:], -1)
}

func capiLog(t *testing.T) []byte {
	t.Helper()
	log, err := os.ReadFile(env.cp.Component(controlplane.CAPI).LogPath())
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// A Pod whose machine its shard has ended gets another one, as long as it waits
// for one.
func TestWaitingPodHasAnotherMachine(t *testing.T) {
	watchOperator(t)
	const namespace = "another"
	newNamespace(t, namespace)
	pod := newPod(namespace, "builder")
	// It never runs on the machine, and so stays when the machine goes.
	pod.Spec.NodeSelector["example.com/never"] = "true"
	pod = createPod(t, pod)
	var first machine
	eventually(t, time.Minute, "the Pod has a machine", func(ctx context.Context) (err error) {
		if first, err = machineOf(ctx, pod); err != nil {
			return err
		}
		return first.running(ctx)
	})
	first.deleteOnShard(t)
	eventually(t, 2*time.Minute, "the Pod has another machine", func(ctx context.Context) error {
		second, err := machineOf(ctx, pod)
		if err != nil {
			return err
		}
		if second.instance == first.instance {
			return fmt.Errorf("it has instance %s", first.instance)
		}
		return second.running(ctx)
	})
	eventually(t, time.Minute, "the first instance is gone", first.ended)
}
