// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// The next step of a drain depends on fields of its Node that the handler of Nodes sees.
func TestTheHandlerSeesWhatADrainDependsOn(t *testing.T) {
	for name, withdrawn := range map[string]bool{"the drain is blocked": false, "the notice is withdrawn": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"), newPod("web", "n1"))
				h.rejectEviction = func(string) error { return errBudget }
				h.announce("n1", time.Now().Add(time.Hour))
				synctest.Wait()
				h.expectCordonedBy("n1", "operator")
				h.stop()
				if withdrawn {
					h.shards.Update(func() { clear(h.shards.ByID["a"].Notices) })
				}
				key, before := Key{Shard: "a", Instance: "i-n1"}, h.node("n1")
				assert.True(t, h.controller.notices.Settled("a"))
				controllertest.ExpectSeen(t, before, func(changed *corev1.Node) (enqueued, did []string, err error) {
					require.NoError(t, h.controller.nodeIndex.Update(changed))
					if relevantChange(before, changed) {
						enqueued = []string{key.String()}
					}
					observed, _, err := h.controller.observe(t.Context(), key, time.Now())
					next := plan(observed, time.Now())
					return enqueued, []string{fmt.Sprint(next.step, next.outcome)}, err
				})
			})
		})
	}
}
