// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Another client may have written the annotation too, as a restore of a backup does. With
// it the Node would be uncordoned at each resync, for ever.
func TestAnAnnotationWithASecondOwnerIsRemoved(t *testing.T) {
	for name, cordons := range map[string]bool{"the annotation": false, "annotation and cordon": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"))
				h.setShardError(errUnreachable)
				h.announce("n1", time.Now().Add(time.Hour))
				synctest.Wait()
				h.expectCordonedBy("n1", "operator")
				copied := corev1ac.Node("n1").WithUID("node-n1").WithAnnotations(map[string]string{v1beta1.AnnotationCordonedFor: "a/i-n1"})
				if cordons {
					copied.WithSpec(corev1ac.NodeSpec().WithUnschedulable(true))
				}
				_, err := h.CoreV1().Nodes().Apply(t.Context(), copied, metav1.ApplyOptions{FieldManager: "backup", Force: true})
				require.NoError(t, err)

				h.setShardError(nil)
				h.setInstance("a", shard.Instance{ID: "i-n1", State: shard.InstanceRunning})
				h.withdraw("n1")
				synctest.Wait()
				want := "none"
				if cordons {
					want = "user"
				}
				h.expectCordonedBy("n1", want)
				h.resetRequests()
				h.shards.Calls()
				for range 3 {
					h.shards.NotifyShard("a")
					advance(time.Minute)
				}
				assert.Zero(t, h.count("patch nodes"), "writes at resyncs")
				assert.Empty(t, h.shards.Calls(), "queries at resyncs")
			})
		})
	}
}
