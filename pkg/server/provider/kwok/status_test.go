// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// setStatus sets the status that a cloud would report for a machine.
func setStatus(t *testing.T, client *fake.Clientset, id, status string, terminating bool) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
	require.NoError(t, err)
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, kwok.AnnotationProviderStatus, status)
	if terminating {
		// As with a finalizer.
		now := metav1.Now()
		node.DeletionTimestamp = &now
	}
	_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func TestProviderStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		id := p.MustRun(spec())
		for _, tc := range []struct {
			status string
			want   instance.State
		}{
			{"stopped", instance.Stopped},
			{"failed", instance.Failed},
			{"impaired", instance.Impaired},
			{"fine", instance.Running},
			{"stopped", instance.Stopped},
			{"", instance.Running},
		} {
			p.DrainChanges()
			setStatus(t, client, id, tc.status, false)
			synctest.Wait()
			if vm, known := p.Get(id); !known || vm.State != tc.want {
				t.Errorf("with status %q it is %v, want %v", tc.status, vm.State, tc.want)
			}
			if reported := len(p.Changes); reported != 1 {
				t.Errorf("status %q was reported %d times, want once", tc.status, reported)
			}
		}

		// The status of an instance that is being deleted does not matter.
		setStatus(t, client, id, "impaired", true)
		p.Await(group, map[string]instance.State{id: instance.Terminating})
	})
}

// TestADeletedInstanceIsTerminating, with any status.
func TestADeletedInstanceIsTerminating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		id := p.MustRun(spec())
		setStatus(t, client, id, "stopped", false)
		p.Await(group, map[string]instance.State{id: instance.Stopped})
		p.MustDelete(id)
		if state, listed := p.States(group)[id]; listed && state != instance.Terminating {
			t.Errorf("right after its deletion it is %v", state)
		}
		p.Await(group, map[string]instance.State{id: providertest.Deleted})
	})
}
