// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
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
				blocked, message := h.blockedDrains()
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
		blocked, message := h.blockedDrains()
		assert.Equal(t, 1, blocked, "blocked drains")
		assert.Contains(t, message, "Node n1")
	})
}

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

// While the attached volumes are not known, a Node may have the volumes of evicted Pods.
func TestNothingIsAcknowledgedBeforeVolumeAttachmentsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume, attachment := newVolume("data", "n1")
		h := newHarness(t, newNode("n1"), volume, attachment, withClaim(newPod("db-0", "n1"), "data"))
		h.restartWithout("volumeattachments")
		h.announce("n1", time.Now().Add(10*time.Hour))
		advance(3 * blockedAfter)
		h.expectAcknowledged()
		assert.Equal(t, 1, h.count("create pods/eviction"), "evictions")
		blocked, message := h.blockedDrains()
		assert.Equal(t, 1, blocked, "blocked drains")
		assert.Contains(t, message, "VolumeAttachments")

		// The informer lists again after a random delay of at most a minute.
		h.stopFailures()
		for range 60 {
			if !h.controller.volumesSynced() {
				advance(time.Second)
			}
		}
		advance(time.Second)
		h.expectAcknowledged()
		require.NoError(t, h.StorageV1().VolumeAttachments().Delete(t.Context(), "data", metav1.DeleteOptions{}))
		advance(2 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

// If the API server of the Nodes is not reachable at the start of the controller, a Node that
// is not in the cache may exist.
func TestNothingIsAcknowledgedBeforeNodesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.restartWithout("nodes", "volumeattachments", "pods")
		h.announce("n1", time.Now().Add(10*time.Hour))
		h.announce("n9", time.Now().Add(10*time.Hour))
		advance(time.Hour)
		h.expectAcknowledged()
		blocked, message := h.blockedDrains()
		assert.Equal(t, 2, blocked, "blocked drains")
		assert.Contains(t, message, "connection refused")

		h.stopFailures()
		advance(2 * time.Minute)
		assert.ElementsMatch(t, []string{"i-n1", "i-n9"}, h.shards.Acknowledged())
		assert.Equal(t, 1, h.count("create pods/eviction"), "evictions")
	})
}

// A summary has the drains that have been blocked for the longest time, and counts all.
func TestSummaryListsTheFirstBlockedDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const drains = v1beta1.MaxBlockedDrains + 5
		h := newHarness(t)
		h.rejectEviction = func(string) error { return errBudget }
		var want []string
		for i := range drains {
			// The later names are blocked first.
			node := fmt.Sprintf("n%02d", drains-i)
			want = append(want, "i-"+node)
			h.addNode(newNode(node))
			h.addPod(newPod("web-"+node, node))
			h.announce(node, time.Now().Add(time.Hour))
			advance(time.Second)
		}
		advance(25 * time.Second)
		draining, blocked, list := h.controller.Summary("a", "workers")
		assert.Equal(t, []int{drains, drains}, []int{draining, blocked}, "draining and blocked")
		var got []string
		for i := range list {
			got = append(got, list[i].Instance)
		}
		assert.Equal(t, want[:v1beta1.MaxBlockedDrains], got)
		draining, _, _ = h.controller.Summary("a", "others")
		assert.Zero(t, draining, "drains in another group")
	})
}

// Each change is a write of the status of a shard group, and of an NstanceMachine.
func TestABlockedDrainIsReportedOnce(t *testing.T) {
	for name, blocks := range map[string]func(h *harness){
		"evictions": func(h *harness) {
			h.rejectEviction = func(string) error {
				return fmt.Errorf("read tcp 10.0.0.1:%d: connection reset", time.Now().Unix())
			}
		},
		"two Nodes": func(h *harness) {
			twin := newNode("twin")
			twin.Spec.ProviderID = "kwok:///n1"
			h.addNode(twin)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
				blocks(h)
				h.announce("n1", time.Now().Add(time.Hour))
				advance(30 * time.Second)
				_, _, before := h.controller.Summary("a", "workers")
				require.Len(t, before, 1)
				var calls int
				h.controller.AddHandler(func(string, string, string) { calls++ })
				for range 10 {
					advance(time.Minute)
					h.shards.NotifyInstance("a", "i-n1")
				}
				_, _, after := h.controller.Summary("a", "workers")
				assert.Equal(t, before, after)
				assert.Zero(t, calls, "changes")
			})
		})
	}
}

// An error may have another text at each attempt, for example the port of the connection.
func TestErrorsThatDifferAreReportedAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newDaemonSet(), newDaemonSetPod("agent-0", "n1"))
		var port atomic.Int32
		h.failRequest = func(sent string) error {
			if sent == "get daemonsets" {
				return fmt.Errorf("read tcp 10.0.0.1:%d; connection reset", port.Add(1))
			}
			return nil
		}
		var calls atomic.Int32
		h.controller.AddHandler(func(string, string, string) { calls.Add(1) })
		since := time.Now()
		h.announce("n1", time.Now().Add(2*time.Hour))
		advance(30 * time.Second)
		calls.Store(0)
		advance(time.Hour)
		if changes := calls.Load(); changes < 50 || changes > 60 || port.Load() < 600 {
			t.Errorf("%d changes for %d errors in an hour", changes, port.Load())
		}
		_, _, list := h.controller.Summary("a", "workers")
		require.Len(t, list, 1)
		assert.Equal(t, v1beta1.ReasonRequestsFailing, list[0].Reason)
		assert.Contains(t, list[0].Message, "; connection reset")
		assert.WithinDuration(t, since, list[0].Since.Time, 2*time.Second)
	})
}

func TestTheFirstOfSeveralReasonsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-2", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(5 * time.Second)
		h.addPod(newPod("web-0", "n1"))
		h.addPod(newPod("web-1", "n1"))
		advance(time.Minute)
		_, _, list := h.controller.Summary("a", "workers")
		require.Len(t, list, 1)
		assert.Equal(t, "web-2", list[0].Pod.Name)
		assert.EqualValues(t, 2, list[0].OtherReasons)
		assert.Equal(t, "Node n1: Pod default/web-2 cannot be evicted (and 2 more)", list[0].Message)
	})
}

// The API server rejects the whole status if one value is too long.
func TestEntriesOfBlockedDrainsAreBounded(t *testing.T) {
	var budgets []string
	for i := range 30 {
		budgets = append(budgets, fmt.Sprintf("%d-%s", i, strings.Repeat("b", 200)))
	}
	many := []blockage{*newUnevictablePod("n1", newPod("web-0", "n1"), budgets, errTwoBudgets, time.Now()),
		newFailure("i-n1", []*corev1.Node{newNode("n1")}, failure{since: time.Now().Add(time.Minute), err: errors.New(strings.Repeat("é", 2000))})}
	entry := newBlockedDrain("i-n1", many)
	assert.Equal(t, budgets[:v1beta1.MaxBlockedDrainBudgets], entry.PodDisruptionBudgets)
	assert.LessOrEqual(t, len(entry.Message), v1beta1.MaxBlockedDrainMessage)
	assert.True(t, strings.HasSuffix(entry.Message, "b (and 1 more)"), entry.Message)
	assert.Zero(t, entry.Since.Nanosecond(), "fractions of seconds")
	if long := newBlockedDrain("i-n1", many[1:]); len(long.Message) > v1beta1.MaxBlockedDrainMessage || !utf8.ValidString(long.Message) {
		t.Errorf("message %q", long.Message)
	}

	p := newProgress(newMetrics(prometheus.NewRegistry()))
	p.set(Key{Shard: "a", Instance: strings.Repeat("i", v1beta1.MaxBlockedDrainInstance+1)}, "workers", many, "")
	_, blocked, list := (&Controller{progress: p}).Summary("a", "workers")
	assert.Equal(t, 1, blocked, "blocked drains")
	assert.Empty(t, list)
}

// A DaemonSet may be deleted while other Pods leave, and then its Pods have to leave too.
func TestNothingIsAcknowledgedWhileADaemonSetCannotBeReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newDaemonSet(), newPod("web-0", "n1"), newDaemonSetPod("agent-0", "n1"))
		reads := 0
		h.mu.Lock()
		h.failRequest = func(sent string) error {
			if sent != "get daemonsets" {
				return nil
			}
			// Only the first list of Pods, before the evictions, succeeds.
			if reads++; reads == 1 {
				return nil
			}
			return apierrors.NewServiceUnavailable("shutting down")
		}
		h.mu.Unlock()
		h.announce("n1", time.Now().Add(10*time.Minute))
		advance(2 * time.Minute)
		assert.Equal(t, 1, h.count("create pods/eviction"), "evictions")
		assert.Greater(t, reads, 1, "reads of the DaemonSet")
		h.expectAcknowledged()
		h.stopFailures()
		advance(2 * time.Minute)
		h.expectAcknowledged("i-n1")
	})
}
