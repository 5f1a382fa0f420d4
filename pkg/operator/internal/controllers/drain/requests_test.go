// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/operator/shard"
)

// The requests of a drain grow with its Pods, and not with other Nodes or with time.
func TestRequestsOfManyDrainsAtOnce(t *testing.T) {
	const notices, podsEach, agentsEach = 100, 2, 1
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{newDaemonSet()}
		for i := range notices {
			node := fmt.Sprintf("n%d", i)
			objects = append(objects, newNode(node))
			for j := range podsEach {
				objects = append(objects, newPod(fmt.Sprintf("web-%d-%d", i, j), node))
			}
			for j := range agentsEach {
				objects = append(objects, newDaemonSetPod(fmt.Sprintf("agent-%d-%d", i, j), node))
			}
		}
		h := newHarness(t, objects...)
		h.resetRequests()
		start := time.Now()
		for i := range notices {
			h.announce(fmt.Sprintf("n%d", i), time.Now().Add(time.Hour))
		}
		synctest.Wait()
		for i := range notices {
			h.expectCordonedBy(fmt.Sprintf("n%d", i), "operator")
		}
		if got := h.count("create pods/eviction"); got != notices*podsEach {
			t.Errorf("%d evictions at once, want %d", got, notices*podsEach)
		}
		advance(time.Minute)
		if got := len(h.shards.Acknowledged()); got != notices {
			t.Errorf("%d acknowledgements, want %d", got, notices)
		}
		for request, most := range map[string]int{
			"patch nodes": 1, "watch pods": 1,
			// One for the watch, one to classify the Pods, one before the acknowledgement.
			"list pods":            3,
			"get daemonsets":       2 * agentsEach,
			"create pods/eviction": podsEach,
		} {
			if got := h.count(request); got > most*notices {
				t.Errorf("%d requests %s for %d drains, want at most %d each", got, request, notices, most)
			}
		}
		all := []string{"patch nodes", "watch pods", "list pods", "get daemonsets", "create pods/eviction"}
		h.mu.Lock()
		others := slices.DeleteFunc(slices.Clone(h.requests), func(request string) bool { return slices.Contains(all, request) })
		total := len(h.requests)
		h.mu.Unlock()
		if len(others) > 0 {
			t.Errorf("other requests: %q", others)
		}
		t.Logf("%.1f requests for each drain of %d Pods, %d of them of DaemonSets, after %s", float64(total)/notices, podsEach+agentsEach, agentsEach, time.Since(start))
	})
}

// The cache of Nodes gets the cordon while a sync finds out whether it has it: what the sync has read
// before that is the Node without the cordon.
func TestACacheThatCatchesUpDuringASyncRepeatsNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.stop()
		catchUp := make(chan struct{})
		h.PrependWatchReactor("nodes", func(action clienttesting.Action) (bool, watch.Interface, error) {
			events, err := h.Tracker().Watch(nodes, "", action.(clienttesting.WatchActionImpl).ListOptions)
			if err != nil {
				return true, nil, err
			}
			return true, watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
				<-catchUp
				return event, true
			}), nil
		})
		var once sync.Once
		var asked atomic.Int32
		h.beforeVersion = func() {
			// A sync asks before it reads the cache. It must not ask again afterwards.
			if h.count("patch nodes") == 0 || asked.Add(1) < 2 {
				return
			}
			once.Do(func() { close(catchUp) })
			time.Sleep(time.Millisecond)
		}
		h.start()
		h.announce("n1", time.Now().Add(time.Hour))
		synctest.Wait()
		require.Equal(t, 1, h.count("patch nodes"), "writes")
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Minute)
		assert.Equal(t, 1, h.count("patch nodes"), "writes")
		<-catchUp
	})
}

func TestOneListOfNodesServesManyDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.resetRequests()
		for i := range 200 {
			h.announce(fmt.Sprintf("n%d", i), time.Now().Add(time.Hour))
		}
		advance(10 * time.Second)
		if got := len(h.shards.Acknowledged()); got != 200 {
			t.Errorf("%d acknowledgements, want 200", got)
		}
		if got := h.count("list nodes"); got != 1 {
			t.Errorf("%d lists of Nodes for 200 instances, want 1", got)
		}
	})
}

// A Pod whose budget never allows the eviction causes a request every few seconds. Its Node, its
// notice and the other Pods cause no requests.
func TestBlockedDrainSendsOnlyEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newDaemonSet(), newPod("web-0", "n1"), newDaemonSetPod("agent-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(2*time.Hour))
		advance(time.Minute)
		h.resetRequests()
		advance(time.Hour)
		attempts := h.count("create pods/eviction")
		h.mu.Lock()
		total := len(h.requests)
		h.mu.Unlock()
		if total != attempts || attempts > 900 {
			t.Errorf("%d requests in an hour, %d of them evictions", total, attempts)
		}
	})
}

// A workload that tolerates the cordon may create Pods one after the other.
func TestPodsThatAreCreatedOneAfterTheOtherAreListedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.announce("n1", time.Now().Add(time.Hour))
		for i := range 100 {
			h.addPod(newPod(fmt.Sprintf("web-1-%d", i), "n1"))
			advance(100 * time.Millisecond)
		}
		advance(10 * time.Second)
		h.expectAcknowledged("i-n1")
		if n := h.count("list pods"); n > 15 {
			t.Errorf("%d lists of Pods for 100 Pods in 10 s", n)
		}
	})
}

// While the Nodes are listed, the shard may learn the provider id: the list has the Node by that
// id, and not by the former one.
func TestAListForAFormerProviderIDProvesNothing(t *testing.T) {
	key := Key{Shard: "a", Instance: "knd1"}
	former, notice := &shard.DeletionNotice{ProviderID: "kwok:///former"}, &shard.DeletionNotice{ProviderID: "kwok:///knd1"}
	l := newNodeLookup(nil, clock.RealClock{}, func(Key, time.Duration) {})
	none := &nodeList{}
	l.request(key, notice)
	l.setResult(key, former, none)
	notFound, _ := l.result(key)
	assert.False(t, notFound, "by the former id")
	l.setResult(key, notice, none)
	notFound, _ = l.result(key)
	assert.True(t, notFound, "by the id of the notice")
}
