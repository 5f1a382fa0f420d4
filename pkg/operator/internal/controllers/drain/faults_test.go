// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// newFullHarness has a Node whose drain needs every kind of request.
func newFullHarness(t *testing.T) *harness {
	volume, attachment := newVolume("data", "n1")
	logs, attachedLogs := newVolume("logs", "n1")
	h := newHarness(t, newNode("n1"), newNode("n2"), newDaemonSet(), newBudget("web", leaves), volume, attachment, logs, attachedLogs,
		withClaim(newPod("db-0", "n1"), "data"), newPod("web-0", "n1"), newPod("web-1", "n1"), withClaim(newDaemonSetPod("agent-0", "n1"), "logs"))
	start := time.Now()
	h.rejectEviction = func(pod string) error {
		if pod == "web-1" && time.Since(start) < 20*time.Second {
			return errBudget
		}
		return nil
	}
	time.AfterFunc(10*time.Second, func() {
		assert.NoError(t, h.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), "", "data"))
	})
	return h
}

// requestsOfADrain are the requests of a drain with newFullHarness.
var requestsOfADrain = []string{
	"patch nodes", "list pods", "watch pods", "get daemonsets", "create pods/eviction", "list poddisruptionbudgets", "get persistentvolumes",
}

func TestEachRequestMayFail(t *testing.T) {
	for _, request := range append(slices.Clone(requestsOfADrain), "list nodes") {
		for name, err := range map[string]error{
			"conflict":    apierrors.NewConflict(nodes.GroupResource(), "n1", errors.New("changed")),
			"unavailable": apierrors.NewServiceUnavailable("shutting down"),
			"lost":        errors.New("connection reset"),
		} {
			t.Run(request+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newFullHarness(t)
					var failures atomic.Int32
					h.failRequest = func(sent string) error {
						if sent == request && failures.Add(1) <= 3 {
							return err
						}
						return nil
					}
					h.announce("n1", time.Now().Add(10*time.Minute))
					h.announce("n9", time.Now().Add(10*time.Minute))
					advance(5 * time.Minute)
					if got := h.shards.Acknowledged(); len(got) != 2 {
						t.Errorf("acknowledged %q", got)
					}
					h.expectCordonedBy("n1", "operator")
					if failures.Load() == 0 {
						t.Errorf("%s was never sent", request)
					}
				})
			})
		}
	}
}

// After a crash at any request, the next process finishes the drain before the
// deadline.
func TestNewProcessContinuesAfterACrashAtAnyRequest(t *testing.T) {
	requests := 0
	for at := 1; ; at++ {
		var sent int
		t.Run(fmt.Sprintf("request %d", at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFullHarness(t)
				crash := make(chan struct{})
				var count atomic.Int32
				h.failRequest = func(string) error {
					if n := count.Add(1); int(n) == at {
						close(crash)
					} else if int(n) > at {
						// The process has crashed; its goroutines stop later.
						return errors.New("crashed")
					}
					return nil
				}
				deleteAt := time.Now().Add(5 * time.Minute)
				h.announce("n1", deleteAt)
				select {
				case <-crash:
				case <-time.After(4 * time.Minute):
				}
				sent = int(count.Load())
				h.stop()
				h.stopFailures()
				h.mu.Lock()
				// A new process does not know the time of the last attempt.
				clear(h.evictions)
				h.mu.Unlock()
				h.start()
				advance(time.Until(deleteAt.Add(-time.Second)))
				if got := h.shards.Acknowledged(); len(got) == 0 || len(got) > 2 {
					t.Errorf("acknowledged %q", got)
				}
				h.expectCordonedBy("n1", "operator")
			})
		})
		requests = max(requests, sent)
		if sent < at {
			break
		}
	}
	if requests < 12 {
		t.Errorf("a drain sends only %d requests", requests)
	}
}

func TestShardMayFailAtEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.setShardError(errUnreachable)
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Minute)
		h.expectAcknowledged()
		h.stop()
		h.start()
		advance(time.Minute)
		h.expectAcknowledged()
		// Each attempt to acknowledge lists the Pods again, because a Pod may be created
		// in the meantime.
		h.addPod(newPod("late", "n1"))
		h.setShardError(nil)
		advance(time.Minute)
		h.expectAcknowledged("i-n1")
	})
}

func TestDrainsContinueWhileAcknowledgementsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		release := make(chan struct{})
		h.delayAcknowledgement = func(string) { <-release }
		for i := range 2 * shardCallWorkers {
			h.announce(fmt.Sprintf("missing-%d", i), time.Now().Add(time.Hour))
		}
		advance(time.Second)
		h.addNode(newNode("n1"))
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Second)
		h.expectCordonedBy("n1", "operator")
		close(release)
		advance(2 * time.Second)
		if got := len(h.shards.Acknowledged()); got != 2*shardCallWorkers+1 {
			t.Errorf("%d acknowledgements", got)
		}
	})
}

func TestShardThatHangsDoesNotDelayAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		release := make(chan struct{})
		h.delayAcknowledgement = func(id string) {
			if id == "a" {
				<-release
			}
		}
		for i := range 200 {
			h.announce(fmt.Sprintf("missing-%d", i), time.Now().Add(time.Hour))
		}
		advance(time.Second)
		h.announceOn("b", "n1", time.Now().Add(time.Hour))
		advance(time.Second)
		h.expectAcknowledged("i-n1")
		close(release)
		advance(5 * time.Second)
		if got := len(h.shards.Acknowledged()); got != 201 {
			t.Errorf("%d acknowledgements", got)
		}
	})
}

func TestUnreachableShardCausesFewLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"))
		h.setShardError(errUnreachable)
		h.announce("n1", time.Now().Add(time.Hour))
		advance(10 * time.Minute)
		if n := h.count("list pods"); n > 60 {
			t.Errorf("%d lists of Pods in 10 min", n)
		}
		h.setShardError(nil)
		advance(20 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}
