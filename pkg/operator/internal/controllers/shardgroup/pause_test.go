// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestPausedCallsNothingAndStillReports(t *testing.T) {
	h := newHarness(t, newObject())
	h.paused = "workers has the annotation cluster.x-k8s.io/paused"
	h.Expect(writeStatus)
	if got, want := h.conditions(), "Ready=False Paused: "+h.paused; !slices.Contains(got, want) {
		t.Errorf("the conditions are %q, want %q", got, want)
	}
	h.setGroup(reported())
	h.Expect(writeStatus)
	if got := h.object().Status; *got.Replicas != 3 || !slices.Contains(h.conditions(), "Ready=True Ready: ") {
		t.Errorf("while paused %d replicas are reported, and the conditions are %q", *got.Replicas, h.conditions())
	}
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 1 })
	h.Expect(writeStatus)
	h.paused = ""
	h.Expect("upsert workers on a with size 1", writeStatus)
}

func TestPausedByItsOwnAnnotation(t *testing.T) {
	object := newObject()
	object.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	h := newHarness(t, object)
	h.Expect(writeStatus)
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Annotations = nil })
	h.Expect("upsert workers on a with size 3", writeStatus)
}
