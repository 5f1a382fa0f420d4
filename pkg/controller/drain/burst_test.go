// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// The calls of a drain grow with its Pods, and not with other Nodes or with time.
func TestCallsOfManyDrainsAtOnce(t *testing.T) {
	const notices, podsEach, agentsEach = 100, 2, 1
	bubble(t, func(t *testing.T) {
		objects := []runtime.Object{newDaemonSet()}
		for i := range notices {
			node := fmt.Sprintf("n%d", i)
			objects = append(objects, newNode(node))
			for j := range podsEach {
				objects = append(objects, newPod(fmt.Sprintf("web-%d-%d", i, j), node))
			}
			for j := range agentsEach {
				objects = append(objects, newAgent(fmt.Sprintf("agent-%d-%d", i, j), node))
			}
		}
		w := newWorld(t, objects...)
		w.reset()
		began := time.Now()
		for i := range notices {
			w.tell(fmt.Sprintf("n%d", i), time.Now().Add(time.Hour))
		}
		synctest.Wait()
		for i := range notices {
			w.wantCordoned(fmt.Sprintf("n%d", i), "ours")
		}
		if got := w.count("create pods/eviction"); got != notices*podsEach {
			t.Errorf("%d evictions at once, want %d", got, notices*podsEach)
		}
		after(time.Minute)
		if got := len(w.acknowledged()); got != notices {
			t.Errorf("%d acknowledgements, want %d", got, notices)
		}
		for call, most := range map[string]int{
			"patch nodes": 1, "watch pods": 1,
			// One of the watch, one to find out what has to leave, one before the
			// acknowledgement.
			"list pods":            3,
			"get daemonsets":       2 * agentsEach,
			"create pods/eviction": podsEach,
		} {
			if got := w.count(call); got > most*notices {
				t.Errorf("%d calls %s for %d drains, want at most %d each", got, call, notices, most)
			}
		}
		all := []string{"patch nodes", "watch pods", "list pods", "get daemonsets", "create pods/eviction"}
		w.mu.Lock()
		others := slices.DeleteFunc(slices.Clone(w.calls), func(call string) bool { return slices.Contains(all, call) })
		total := len(w.calls)
		w.mu.Unlock()
		if len(others) > 0 {
			t.Errorf("other calls: %q", others)
		}
		t.Logf("%.1f calls for each drain of %d Pods, %d of them of DaemonSets, after %s", float64(total)/notices, podsEach+agentsEach, agentsEach, time.Since(began))
	})
}

func TestOneListOfNodesAnswersAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.reset()
		for i := range 200 {
			w.tell(fmt.Sprintf("n%d", i), time.Now().Add(time.Hour))
		}
		after(10 * time.Second)
		if got := len(w.acknowledged()); got != 200 {
			t.Errorf("%d acknowledgements, want 200", got)
		}
		if got := w.count("list nodes"); got != 1 {
			t.Errorf("%d lists of Nodes for 200 instances, want 1", got)
		}
	})
}

// A Pod of a budget that never allows it costs a call every few seconds; its Node,
// its notice and the other Pods cost nothing.
func TestBlockedDrainCostsOnlyTries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newDaemonSet(), newPod("web-0", "n1"), newAgent("agent-0", "n1"))
		w.refuse = func(string) error { return errBudget }
		w.tell("n1", time.Now().Add(2*time.Hour))
		after(time.Minute)
		w.reset()
		after(time.Hour)
		tries := w.count("create pods/eviction")
		w.mu.Lock()
		total := len(w.calls)
		w.mu.Unlock()
		if total != tries || tries > 900 {
			t.Errorf("%d calls in an hour, %d of them evictions", total, tries)
		}
	})
}

// Something may make one Pod after the other that tolerates the cordon.
func TestPodsThatComeOneAfterTheOtherAreNotListedOneByOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.tell("n1", time.Now().Add(time.Hour))
		for i := range 100 {
			if err := w.Tracker().Add(newPod(fmt.Sprintf("again-%d", i), "n1")); err != nil {
				t.Fatal(err)
			}
			after(100 * time.Millisecond)
		}
		after(10 * time.Second)
		w.want("i-n1")
		if n := w.count("list pods"); n > 15 {
			t.Errorf("%d lists of Pods for 100 Pods in 10 s", n)
		}
	})
}
