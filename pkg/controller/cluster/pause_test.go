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

func annotate(object *v1beta1.NstanceCluster) {
	object.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
}

// While a cluster is paused no spec is written. Its status tells the truth, and
// its token is a credential and no spec.
func TestPause(t *testing.T) {
	for name, test := range map[string]struct{ pause, unpause func(*harness) }{
		"by the Cluster": {
			func(h *harness) { h.showCluster(paused) },
			func(h *harness) { h.showCluster() },
		},
		"by the annotation": {
			func(h *harness) { h.changeNstanceCluster(annotate) },
			func(h *harness) {
				h.changeNstanceCluster(func(object *v1beta1.NstanceCluster) { object.Annotations = nil })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, requeue := settled(t, time.Hour)
			if got := h.condition(v1beta1.ConditionPaused); got.Status != metav1.ConditionFalse {
				t.Errorf("before, Paused is %+v", got)
			}
			test.pause(h)
			h.changeNstanceCluster(func(object *v1beta1.NstanceCluster) { object.Spec.ControlPlaneEndpoint.Host = "somewhere.else" })
			h.expect(writeStatus)
			if got := h.condition(v1beta1.ConditionPaused); got.Status != metav1.ConditionTrue || got.Message == "" {
				t.Errorf("Paused is %+v", got)
			}
			h.clock.SetTime(h.clock.Now().Add(requeue))
			h.expect(requestToken, writeSecret)

			test.unpause(h)
			h.expect(writeCluster, writeStatus)
		})
	}
}

func TestPausedClusterIsNotMade(t *testing.T) {
	h, _ := settled(t, time.Hour)
	h.changeNstanceCluster(annotate)
	h.capi.Taken = nil
	if err := h.clusters.GetIndexer().Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	h.expect(writeStatus)
	h.expect()
}

func TestPausedNstanceClusterIsNotMade(t *testing.T) {
	h := newHarness(t, source())
	h.showCluster(paused)
	h.expect(requestToken, writeSecret)
	h.expect()
}
