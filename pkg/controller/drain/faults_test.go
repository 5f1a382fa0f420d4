// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// newBusyWorld has a Node with all that makes a drain call for something.
func newBusyWorld(t *testing.T) *world {
	volume, attachment := newVolume("data", "n1")
	logs, attachedLogs := newVolume("logs", "n1")
	w := newWorld(t, newNode("n1"), newNode("n2"), newDaemonSet(), newBudget("web", leaves), volume, attachment, logs, attachedLogs,
		claiming(newPod("db-0", "n1"), "data"), newPod("web-0", "n1"), newPod("web-1", "n1"), claiming(newAgent("agent-0", "n1"), "logs"))
	began := time.Now()
	w.refuse = func(pod string) error {
		if pod == "web-1" && time.Since(began) < 20*time.Second {
			return errBudget
		}
		return nil
	}
	time.AfterFunc(10*time.Second, func() {
		if err := w.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), "", "data"); err != nil {
			t.Error(err)
		}
	})
	return w
}

// The calls that a drain makes, in the world above.
var callsOfADrain = []string{
	"patch nodes", "list pods", "watch pods", "get daemonsets", "create pods/eviction", "list poddisruptionbudgets", "get persistentvolumes",
}

func TestEveryCallMayFail(t *testing.T) {
	for _, call := range append(slices.Clone(callsOfADrain), "list nodes") {
		for name, err := range map[string]error{
			"conflict":    apierrors.NewConflict(nodes.GroupResource(), "n1", errors.New("changed")),
			"unavailable": apierrors.NewServiceUnavailable("shutting down"),
			"lost":        errors.New("connection reset"),
		} {
			t.Run(call+" "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newBusyWorld(t)
					var failures atomic.Int32
					w.fail = func(made string) error {
						if made == call && failures.Add(1) <= 3 {
							return err
						}
						return nil
					}
					w.tell("n1", time.Now().Add(10*time.Minute))
					w.tell("n9", time.Now().Add(10*time.Minute))
					after(5 * time.Minute)
					if got := w.acknowledged(); len(got) != 2 {
						t.Errorf("acknowledged %q", got)
					}
					w.wantCordoned("n1", "ours")
					if failures.Load() == 0 {
						t.Errorf("%s was never called", call)
					}
				})
			})
		}
	}
}

// A process that dies at any call leaves a drain that the next one finishes, and
// that the server hears of in time.
func TestNewProcessGoesOnAfterEveryCall(t *testing.T) {
	calls := 0
	for at := 1; ; at++ {
		var made int
		t.Run(fmt.Sprintf("call %d", at), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newBusyWorld(t)
				crash := make(chan struct{})
				var count atomic.Int32
				w.fail = func(string) error {
					if n := count.Add(1); int(n) == at {
						close(crash)
					} else if int(n) > at {
						// The process is dead, only its goroutines do not know yet.
						return errors.New("dead")
					}
					return nil
				}
				deleteAt := time.Now().Add(5 * time.Minute)
				w.tell("n1", deleteAt)
				select {
				case <-crash:
				case <-time.After(4 * time.Minute):
				}
				made = int(count.Load())
				w.stop()
				w.mu.Lock()
				w.fail = func(string) error { return nil }
				// A new process cannot know when the last one has tried.
				clear(w.evictions)
				w.mu.Unlock()
				w.start()
				after(time.Until(deleteAt.Add(-time.Second)))
				if got := w.acknowledged(); len(got) == 0 || len(got) > 2 {
					t.Errorf("acknowledged %q", got)
				}
				w.wantCordoned("n1", "ours")
			})
		})
		calls = max(calls, made)
		if made < at {
			break
		}
	}
	if calls < 12 {
		t.Errorf("a drain makes only %d calls", calls)
	}
}

func TestShardMayFailAtAnyCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.shardIs(errUnreachable)
		w.tell("n1", time.Now().Add(time.Hour))
		after(time.Minute)
		w.want()
		w.stop()
		w.start()
		after(time.Minute)
		w.want()
		// While the acknowledgement is on its way, a Pod may come: each try lists anew.
		if err := w.Tracker().Add(newPod("late", "n1")); err != nil {
			t.Fatal(err)
		}
		w.shardIs(nil)
		after(time.Minute)
		w.want("i-n1")
	})
}

func TestDrainsOfOtherShardsGoOnWhileOneHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		release := make(chan struct{})
		w.hang = func(string) { <-release }
		for i := range 2 * callers {
			w.tell(fmt.Sprintf("gone-%d", i), time.Now().Add(time.Hour))
		}
		after(time.Second)
		w.add(newNode("n1"))
		w.tell("n1", time.Now().Add(time.Hour))
		after(time.Second)
		w.wantCordoned("n1", "ours")
		close(release)
		after(2 * time.Second)
		if got := len(w.acknowledged()); got != 2*callers+1 {
			t.Errorf("%d acknowledgements", got)
		}
	})
}

func TestShardThatHangsHoldsUpNoAcknowledgementOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		release := make(chan struct{})
		w.hang = func(id string) {
			if id == "a" {
				<-release
			}
		}
		for i := range 200 {
			w.tell(fmt.Sprintf("gone-%d", i), time.Now().Add(time.Hour))
		}
		after(time.Second)
		w.tellAlso("b", "n1", time.Now().Add(time.Hour))
		after(time.Second)
		w.want("i-n1")
		close(release)
		after(5 * time.Second)
		if got := len(w.acknowledged()); got != 201 {
			t.Errorf("%d acknowledgements", got)
		}
	})
}

func TestShardThatIsDownCostsFewLists(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"))
		w.shardIs(errUnreachable)
		w.tell("n1", time.Now().Add(time.Hour))
		after(10 * time.Minute)
		if n := w.count("list pods"); n > 60 {
			t.Errorf("%d lists of Pods in 10 min", n)
		}
		w.shardIs(nil)
		after(20 * time.Second)
		w.want("i-n1")
	})
}
