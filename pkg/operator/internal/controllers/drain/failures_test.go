// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// forbid makes a kind of request fail for want of a right.
func (h *harness) forbid(request string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failRequest = func(sent string) error {
		if sent == request {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "a", nil)
		}
		return nil
	}
}

// A drain whose requests fail would end at its deadline with the Pods on the Node, and
// only the log would say why.
func TestMissingRightsAreReported(t *testing.T) {
	for request, instance := range map[string]string{
		"patch nodes": "n1", "list pods": "n1", "get daemonsets": "n1", "get persistentvolumes": "n1", "list nodes": "n9",
	} {
		t.Run(request, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFullHarness(t)
				group := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: h.fakes.Namespace, Name: v1beta1.ShardGroupName("workers", "a")}}
				require.NoError(t, h.fakes.Informers.Nstance.NstanceShardGroups().Informer().GetIndexer().Add(group))
				h.forbid(request)
				h.announce(instance, time.Now().Add(10*time.Minute))
				advance(10 * time.Second)
				_, blocked, _ := h.controller.Summary("a", "workers")
				assert.Zero(t, blocked, "blocked drains within the time for faults that pass")
				advance(time.Minute)
				_, blocked, message := h.controller.Summary("a", "workers")
				assert.Equal(t, 1, blocked, "blocked drains")
				assert.Contains(t, message, "forbidden")
				assert.Contains(t, message, instance)
				h.expectAcknowledged()
				var recorded []string
				for _, event := range h.fakes.Events() {
					if strings.Contains(event, "DrainBlocked") && strings.Contains(event, "forbidden") {
						recorded = append(recorded, event)
					}
				}
				assert.Len(t, recorded, 1, "events")

				h.stopFailures()
				advance(2 * time.Minute)
				h.expectAcknowledged("i-" + instance)
				_, blocked, _ = h.controller.Summary("a", "workers")
				assert.Zero(t, blocked)
			})
		})
	}
}

func TestPodsAreEvictedWhileADaemonSetCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newDaemonSet(), newPod("web-0", "n1"), newPod("web-1", "n1"), newDaemonSetPod("agent-0", "n1"))
		h.forbid("get daemonsets")
		h.announce("n1", time.Now().Add(10*time.Minute))
		advance(10 * time.Second)
		assert.Equal(t, 2, h.count("create pods/eviction"), "evictions")
		advance(time.Minute)
		h.expectAcknowledged()
		assert.LessOrEqual(t, h.count("list pods"), 20, "lists of Pods in 70 s")
		h.stopFailures()
		advance(10 * time.Second)
		h.expectAcknowledged("i-n1")
		assert.Equal(t, 2, h.count("create pods/eviction"), "evictions")
	})
}

// The Pods of the Node are unknown while they cannot be watched.
func TestAWatchThatCannotBeOpenedIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.forbid("list pods")
		h.announce("n1", time.Now().Add(10*time.Minute))
		advance(20 * time.Second)
		_, blocked, message := h.controller.Summary("a", "workers")
		assert.Equal(t, 1, blocked, "blocked drains")
		assert.Contains(t, message, "Node n1")
	})
}
