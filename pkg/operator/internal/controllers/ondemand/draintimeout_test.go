// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Without a limit one Pod whose disruption budget allows no eviction would keep the
// machine for ever.
func TestMachinesHaveADrainTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		timeout    time.Duration
		annotation *string
		want       *int32
	}{
		"of the flag":                  {timeout: time.Hour, want: ptr.To[int32](3600)},
		"none":                         {},
		"of the Pod":                   {timeout: time.Hour, annotation: ptr.To("90s"), want: ptr.To[int32](90)},
		"of the Pod, in whole seconds": {timeout: time.Hour, annotation: ptr.To("200ms"), want: ptr.To[int32](1)},
		"none of the Pod":              {timeout: time.Hour, annotation: ptr.To("0s")},
	} {
		for _, crash := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				pod := newPod("requesting", "gpu")
				if test.annotation != nil {
					pod.Annotations[v1beta1.AnnotationOnDemandDrainTimeout] = *test.annotation
				}
				h := newHarness(t, 0, newShards("gpu"), pod)
				h.controller.drainTimeout = test.timeout
				if crash {
					h.store("nstancemachines", newNstanceMachine(pod))
					h.expect(pod, createsMachine)
				} else {
					h.expect(pod, createsNstanceMachine, createsMachine)
				}
				deletion := stored[clusterv1.Machine](h, "machines", pod).Spec.Deletion
				assert.Equal(t, test.want, deletion.NodeDrainTimeoutSeconds, "the drain")
				assert.Equal(t, test.want, deletion.NodeVolumeDetachTimeoutSeconds, "the detachment of volumes")
			})
		}
	}
}

func TestAnInvalidDrainTimeoutIsRejected(t *testing.T) {
	for _, value := range []string{"", "soon", "-1s", "8761h"} {
		pod := newPod("requesting", "gpu")
		pod.Annotations[v1beta1.AnnotationOnDemandDrainTimeout] = value
		h := newHarness(t, 0, newShards("gpu"), pod)
		h.expect(pod)
		h.ExpectEvents(`Warning InvalidAnnotation annotation on-demand.nstance.dev/drain-timeout must be a duration, such as 90s or 1h30m, of 0s to 8760h0m0s; it is "` + value + `"`)
	}
}
