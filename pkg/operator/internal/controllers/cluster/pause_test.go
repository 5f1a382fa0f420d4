// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func pausedByAnnotation(nstanceCluster *v1beta1.NstanceCluster) {
	nstanceCluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
}

// While a cluster is paused no spec is written. Its status is updated, and the token is
// replaced, because a credential is not a spec.
func TestPause(t *testing.T) {
	for name, test := range map[string]struct{ pause, unpause func(*harness) }{
		"by the Cluster": {
			func(h *harness) { h.showCluster(paused) },
			func(h *harness) { h.showCluster() },
		},
		"by the annotation": {
			func(h *harness) { h.changeNstanceCluster(pausedByAnnotation) },
			func(h *harness) {
				h.changeNstanceCluster(func(n *v1beta1.NstanceCluster) { n.Annotations = nil })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, requeue := newSyncedHarness(t, time.Hour)
			if got := h.condition(v1beta1.ConditionPaused); got.Status != metav1.ConditionFalse {
				t.Errorf("before, Paused is %+v", got)
			}
			test.pause(h)
			h.changeNstanceCluster(func(n *v1beta1.NstanceCluster) { n.Spec.ControlPlaneEndpoint.Host = "somewhere.else" })
			h.expect(writeStatus)
			if got := h.condition(v1beta1.ConditionPaused); got.Status != metav1.ConditionTrue || got.Message == "" {
				t.Errorf("Paused is %+v", got)
			}
			h.Advance(requeue)
			h.expect(requestToken, writeSecret)

			test.unpause(h)
			h.expect(writeCluster, writeStatus)
		})
	}
}

func TestPausedClusterIsNotCreated(t *testing.T) {
	h, _ := newSyncedHarness(t, time.Hour)
	h.changeNstanceCluster(pausedByAnnotation)
	h.forgetCluster()
	h.expect(writeStatus)
	h.expect()
}

func TestPausedNstanceClusterIsNotCreated(t *testing.T) {
	h := newHarness(t, source())
	h.showCluster(paused)
	h.expect(requestToken, writeSecret)
	h.expect()
}
