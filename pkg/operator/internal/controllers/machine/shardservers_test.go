// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/runtest"
	"nstance.dev/operator/pkg/testing/tier"
)

// serverHarness is a harness with real shard servers that have the group "workers".
type serverHarness struct {
	*harness

	servers *shardtest.Servers
}

// newServerHarness starts the servers and connects to them. The controller receives no
// deletion notices.
func newServerHarness(t testing.TB, ids ...string) *serverHarness {
	t.Helper()
	var options []servertest.Options
	for _, id := range ids {
		options = append(options, servertest.Options{
			Shard:     id,
			Templates: `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default", "limits": {"vars": ["*"], "on_demand": true}}}`,
			Groups:    `{"default": {"workers": {"template": "worker", "size": 0}}}`,
		})
	}
	h := &serverHarness{newHarness(t, newShards()), shardtest.StartServers(t, options...)}
	h.UseServers(h.servers)
	h.Notices = h.Fake.Notices()
	// The test does not read the events.
	h.Recorder = &events.FakeRecorder{}
	h.restart()
	h.servers.Connect()
	h.servers.AwaitReachable()
	return h
}

// records returns the number of instances that the servers have stored.
func (h *serverHarness) records() int {
	h.T.Helper()
	records := 0
	for id, server := range h.servers.ByID {
		stored, err := server.Storage.List(h.T.Context(), storage.InstancePrefix(id))
		require.NoError(h.T, err)
		records += len(stored)
	}
	return records
}

// add creates an NstanceMachine with its Machine as owner.
func (h *serverHarness) add(nstanceMachine *v1beta1.NstanceMachine) {
	h.T.Helper()
	require.NoError(h.T, h.Tracker().Add(nstanceMachine))
	h.Put(h.Informers.Machines, newMachine(nstanceMachine.Name))
}

// delete deletes an NstanceMachine as Cluster API does after the drain.
func (h *serverHarness) delete(name string) {
	h.T.Helper()
	require.NoError(h.T, h.controller.nstanceMachines.Delete(h.T.Context(), name, metav1.DeleteOptions{}))
}

// eventually syncs all NstanceMachines until condition returns true.
func (h *serverHarness) eventually(what string, condition func() bool) {
	h.T.Helper()
	runtest.Eventually(h.T, what, func() bool {
		h.Show()
		h.syncAll()
		return condition()
	})
}

// groupsWithoutHandlers is a cache for controllers that are created one after the other and
// synced by hand.
type groupsWithoutHandlers struct{ shard.Groups }

func (groupsWithoutHandlers) AddHandler(shard.GroupHandler) {}

// Replies are lost, the controller restarts, caches are stale and writes fail around
// CreateInstance, a thousand times. Each NstanceMachine has one instance, and the servers have
// no other instances.
func TestOneInstanceOnRealServersDespiteManyFaults(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 2)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { testOneInstanceDespiteManyFaults(t, rand.New(rand.NewPCG(seed, 2))) })
	}
}

func testOneInstanceDespiteManyFaults(t *testing.T, random *rand.Rand) {
	const faults = 1000
	h := newServerHarness(t, "a", "b")
	h.Groups = groupsWithoutHandlers{h.Groups}
	var counts [lost + 1]int
	restarts, total, calm := 0, 0, false
	next := func() fault {
		if calm || random.IntN(10) < 4 {
			return none
		}
		failure := conflict + fault(random.IntN(int(lost)))
		counts[failure]++
		total++
		return failure
	}
	h.failWrites(next)
	h.ShardClient = unreliableClient{h.servers, next}

	var names []string
	for total < faults {
		nstanceMachine := newNstanceMachine(fmt.Sprintf("m-%d", len(names)))
		nstanceMachine.Spec.InstanceType = ""
		names = append(names, nstanceMachine.Name)
		h.add(nstanceMachine)
		h.restart()
		h.Show()
		for h.nstanceMachine(nstanceMachine.Name).Status.InstanceID == "" {
			if random.IntN(3) > 0 {
				h.Show()
			}
			_, err := h.controller.sync(h.Ctx, controllertest.Key(nstanceMachine.Name))
			if err != nil && random.IntN(2) == 0 {
				h.restart()
				restarts++
			}
		}
	}
	t.Logf("%d NstanceMachines, %d faults (%d conflicts, %d failures, %d lost replies), %d restarts",
		len(names), total, counts[conflict], counts[failed], counts[lost], restarts)
	if got := h.records(); got != len(names) {
		t.Errorf("the servers have %d instances for %d NstanceMachines", got, len(names))
	}
	ids := map[string]bool{}
	for _, name := range names {
		status := h.nstanceMachine(name).Status
		if _, err := h.servers.GetInstance(t.Context(), status.Shard, status.InstanceID); err != nil {
			t.Errorf("instance of NstanceMachine %s: %v", name, err)
		}
		ids[status.InstanceID] = true
	}
	if len(ids) != len(names) {
		t.Errorf("%d NstanceMachines share %d instances", len(names), len(ids))
	}

	// After the deletion of the NstanceMachines no instance exists.
	for _, name := range names {
		h.delete(name)
	}
	calm = true
	h.eventually("all NstanceMachines are deleted", func() bool {
		h.Advance(time.Minute)
		for _, name := range names {
			if h.nstanceMachine(name) != nil {
				return false
			}
		}
		return true
	})
	if got := h.records(); got != 0 {
		t.Errorf("the servers have %d instances left", got)
	}
}

// This test uses a real queue, informer and clock.
func TestTheLifeOfNstanceMachinesOnARealServer(t *testing.T) {
	h := newServerHarness(t, "a")
	for i := range 3 {
		nstanceMachine := newNstanceMachine(fmt.Sprintf("m-%d", i))
		nstanceMachine.Spec.InstanceType = ""
		h.add(nstanceMachine)
	}
	h.Clock = clock.RealClock{}
	h.restart()
	runtest.Start(t, h.Informers.Nstance.NstanceMachines().Informer().RunWithContext, h.controller.Run)

	runtest.Eventually(h.T, "all are ready", func() bool {
		for i := range 3 {
			if conditionOf(h.nstanceMachine(fmt.Sprintf("m-%d", i)), v1beta1.ConditionReady) != "True Ready: " {
				return false
			}
		}
		return true
	})
	client := h.servers.ByID["a"].Kubernetes.CoreV1().Nodes()
	nodes, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 3 {
		t.Fatalf("there are %d Nodes, error %v", len(nodes.Items), err)
	}
	for i := range 3 {
		h.delete(fmt.Sprintf("m-%d", i))
	}
	runtest.Eventually(h.T, "all are deleted", func() bool {
		return h.nstanceMachine("m-0") == nil && h.nstanceMachine("m-1") == nil && h.nstanceMachine("m-2") == nil
	})
	if nodes, err = client.List(t.Context(), metav1.ListOptions{}); err != nil || len(nodes.Items) != 0 || h.records() != 0 {
		t.Errorf("there are %d Nodes and %d instances, error %v", len(nodes.Items), h.records(), err)
	}
}
