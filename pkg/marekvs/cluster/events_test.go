// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// A change of the size is an event, also if the status cannot be written then.
func TestAnEventDoesNotNeedTheStatus(t *testing.T) {
	h := newHarness(t, nil)
	h.change(sized(4))
	h.kinds.Fail(writeStatus, apierrors.NewInternalError(errors.New("broken")))
	for range 3 {
		h.show()
		_, err := h.syncStale(t.Context())
		require.ErrorContains(t, err, "broken")
		h.runStatefulSet()
	}
	assert.Equal(t, []string{"Normal ScaledUp Scaled from 3 to 4 nodes"}, h.events())
	h.kinds.Fail(writeStatus, nil)
	h.settle()
	assert.Empty(t, h.events())
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

// What a sync has done before a conflict is an event, too: the next sync does not do it again.
func TestAConflictHidesNoEvent(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.MarekvsCluster)
		// prepare brings the cluster to the sync whose action has a conflict.
		prepare func(*harness)
		action  string
		object  schema.GroupResource
		want    []string
	}{
		"claims grow, and the size cannot be written": {
			prepare: func(h *harness) {
				h.change(grow)
				h.change(sized(4))
			},
			action: applySet, object: setResource.GroupResource(),
			want: []string{
				"Normal VolumeExpanded Raised the size of volume claim data-demo-0 to 20Gi",
				"Normal VolumeExpanded Raised the size of volume claim data-demo-1 to 20Gi",
				"Normal VolumeExpanded Raised the size of volume claim data-demo-2 to 20Gi",
			},
		},
		"a claim is deleted to replace it, and its Pod has changed": {
			prepare: func(h *harness) {
				h.changeClaim(0, func(claim *corev1.PersistentVolumeClaim) {
					claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
					requestReplacement(claim)
				})
				h.step()
			},
			action: "delete pods demo-0", object: podResource.GroupResource(),
			want: []string{"Normal VolumeReplaced Deleted volume claim data-demo-0 and its Pod, to replace them on request"},
		},
		"one of two claims of removed nodes has changed": {
			change: func(c *v1alpha1.MarekvsCluster) {
				reclaiming(c)
				c.Spec.Nodes, c.Spec.ReclaimAfterSeconds = 5, 50
			},
			prepare: func(h *harness) {
				h.change(sized(3))
				h.sizes(40)
				require.Len(h.t, h.claims(), 3)
				h.events()
				h.builtIn.Add(newClaim(3))
				h.builtIn.Add(newClaim(4))
			},
			action: "delete persistentvolumeclaims data-demo-4", object: claimResource.GroupResource(),
			want: []string{"Normal VolumeReclaimed Deleted volume claim data-demo-3 of a removed node"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, c.change)
			c.prepare(h)
			h.builtIn.Fail(c.action, apierrors.NewConflict(c.object, "demo", errors.New("changed")))
			for range 2 {
				h.show()
				_, err := h.syncStale(t.Context())
				require.NoError(t, err, "a conflict is repeated and not reported")
			}
			assert.Equal(t, c.want, h.events())
		})
	}
}
