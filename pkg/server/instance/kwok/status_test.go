// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok"
	"nstance.dev/operator/pkg/server/instance/kwok/kwoktest"
)

// setStatus says of a machine what a cloud would.
func setStatus(t *testing.T, client *fake.Clientset, id, status string, terminating bool) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, kwok.AnnotationProviderStatus, status)
	if terminating {
		// As with a finalizer.
		now := metav1.Now()
		node.DeletionTimestamp = &now
	}
	if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestProviderStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id := p.createRunning(group)
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
			for len(p.changes) > 0 {
				<-p.changes
			}
			setStatus(t, client, id, tc.status, false)
			synctest.Wait()
			if vm, known := p.Get(id); !known || vm.State != tc.want {
				t.Errorf("with status %q it is %v, want %v", tc.status, vm.State, tc.want)
			}
			if told := len(p.changes); told != 1 {
				t.Errorf("of status %q it was told %d times, want once", tc.status, told)
			}
		}

		// On its way out, it matters no more how it is.
		setStatus(t, client, id, "impaired", true)
		p.await(group, map[string]instance.State{id: instance.Terminating})
	})
}

// TestAnEndIsAnEnd: what is ordered to go terminates, whatever its status.
func TestAnEndIsAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id := p.createRunning(group)
		setStatus(t, client, id, "stopped", false)
		p.await(group, map[string]instance.State{id: instance.Stopped})
		p.delete(id)
		if state, there := p.states(group)[id]; there && state != instance.Terminating {
			t.Errorf("right after its deletion it is %v", state)
		}
		p.await(group, map[string]instance.State{id: gone})
	})
}
