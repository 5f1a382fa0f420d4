// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// restartWithout starts the controller again while requests for resources fail. Their
// caches are not complete until stopFailures.
func (h *harness) restartWithout(resources ...string) {
	h.t.Helper()
	h.stop()
	h.mu.Lock()
	h.failRequest = func(request string) error {
		for _, resource := range resources {
			if strings.HasSuffix(request, " "+resource) {
				return errors.New("connection refused")
			}
		}
		return nil
	}
	h.mu.Unlock()
	h.incomplete = true
	h.start()
}

// While the attached volumes are not known, a Node may have those of evicted Pods.
func TestNothingIsAcknowledgedBeforeVolumeAttachmentsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume, attachment := newVolume("data", "n1")
		h := newHarness(t, newNode("n1"), volume, attachment, withClaim(newPod("db-0", "n1"), "data"))
		h.restartWithout("volumeattachments")
		h.announce("n1", time.Now().Add(10*time.Hour))
		advance(time.Minute)
		h.expectAcknowledged()
		assert.Equal(t, 1, h.count("create pods/eviction"), "evictions")
		_, blocked, message := h.controller.Summary("a", "workers")
		assert.Equal(t, 1, blocked, "blocked drains")
		assert.Contains(t, message, "VolumeAttachments")

		h.stopFailures()
		advance(40 * time.Second)
		h.expectAcknowledged()
		require.NoError(t, h.StorageV1().VolumeAttachments().Delete(t.Context(), "data", metav1.DeleteOptions{}))
		advance(2 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

// A controller that starts while the API server of the Nodes is not reachable must not take
// a Node that it cannot see for one that does not exist.
func TestNothingIsAcknowledgedBeforeNodesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.restartWithout("nodes", "volumeattachments", "pods")
		h.announce("n1", time.Now().Add(10*time.Hour))
		h.announce("n9", time.Now().Add(10*time.Hour))
		advance(time.Hour)
		h.expectAcknowledged()
		_, blocked, message := h.controller.Summary("a", "workers")
		assert.Equal(t, 2, blocked, "blocked drains")
		assert.Contains(t, message, "connection refused")

		h.stopFailures()
		advance(2 * time.Minute)
		assert.ElementsMatch(t, []string{"i-n1", "i-n9"}, h.shards.Acknowledged())
		assert.Equal(t, 1, h.count("create pods/eviction"), "evictions")
	})
}
