// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/tier"
)

// fault is the failure of one call.
type fault int

const (
	// none: the call succeeds.
	none fault = iota
	// conflict: another client has written in between.
	conflict
	// failed: the call has no effect.
	failed
	// lost: the call has an effect, but the reply is lost.
	lost
)

var errFailed = errors.New("failed on purpose")

// failWrites makes writes of NstanceMachines fail with the faults of next.
func (h *harness) failWrites(next func() fault) {
	chain := slices.Clone(h.ReactionChain)
	h.PrependReactor("patch", nstanceMachines.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch next() {
		case conflict:
			return true, nil, apierrors.NewConflict(nstanceMachines.GroupResource(), "m", errFailed)
		case failed:
			return true, nil, apierrors.NewInternalError(errFailed)
		case lost:
			for _, reactor := range chain {
				if !reactor.Handles(action) {
					continue
				}
				if handled, _, _ := reactor.React(action); handled {
					break
				}
			}
			return true, nil, apierrors.NewTimeoutError("no reply", 1)
		default:
			return false, nil, nil
		}
	})
}

// unreliableClient loses create requests and replies according to next.
type unreliableClient struct {
	shard.Client

	next func() fault
}

func (u unreliableClient) CreateInstance(ctx context.Context, id, requestID string, spec shard.InstanceSpec) (shard.Instance, error) {
	failure := u.next()
	if failure == conflict || failure == failed {
		return shard.Instance{}, shardtest.Unavailable
	}
	instance, err := u.Client.CreateInstance(ctx, id, requestID, spec)
	if failure == lost {
		return shard.Instance{}, shardtest.Unavailable
	}
	return instance, err
}

// One call or write fails, each in turn, with or without a restart and with or without a stale
// cache after it. Exactly one instance exists at the end, and it is requested only after shard
// and request id were stored.
func TestOneInstanceDespiteAnyFault(t *testing.T) { testEachFault(t, "", nil) }

// testEachFault calls testOneFault for every fault at every call. If a shard declines, it
// tests all combinations with restarts and stale caches only at full size.
func testEachFault(t *testing.T, declines string, with error) {
	for _, failure := range []fault{conflict, failed, lost} {
		for _, restarted := range []bool{false, true} {
			for _, stale := range []int{0, 2} {
				if declines != "" && restarted != (stale > 0) && !tier.Full() {
					continue
				}
				reached := true
				for at := 0; reached; at++ {
					name := fmt.Sprintf("fault %d at call %d, restarted %t, stale for %d syncs", failure, at, restarted, stale)
					t.Run(name, func(t *testing.T) { reached = testOneFault(t, failure, at, restarted, stale, declines, with) })
				}
			}
		}
	}
}

// testOneFault reports whether there were enough calls to reach the fault. The shard declines,
// if set, declines requests with an error until the first fault.
func testOneFault(t *testing.T, failure fault, at int, restarted bool, stale int, declines string, with error) (reached bool) {
	// A second choice would be another shard.
	s := newShards("a", "b")
	h := newHarness(t, s, newNstanceMachine("m"), withShard(newNstanceMachine("neighbour")))
	s.OnCreate = func(id, requestID string) {
		stored := h.nstanceMachine("m")
		if at := locate(stored); !hasFinalizer(stored) || at.shardID != id || at.requestID != requestID {
			t.Errorf("requested %q from shard %q, stored is %+v", requestID, id, at)
		}
	}
	calls := 0
	next := func() fault {
		calls++
		if calls == at+1 {
			return failure
		}
		return none
	}
	h.failWrites(next)
	declining := map[string]error{declines: with}
	h.ShardClient = unreliableClient{decliningClient{s, h, declining}, next}
	h.restart()
	for _, on := range s.ByID {
		on.Instances["i-1"] = shard.Instance{ID: "i-1", State: shard.InstanceRunning, ProviderID: "provider-i-1"}
	}

	left := 0
	for range 30 {
		if left == 0 {
			h.Show()
		}
		before := calls
		_, _, err := h.SyncStale()
		left = max(left-1, 0)
		if err != nil && before <= at && calls > at {
			left = stale
			clear(declining)
			if restarted {
				h.restart()
			}
			// The groups change meanwhile.
			if _, ok := h.shardA().Groups["workers"]; ok {
				delete(h.shardA().Groups, "workers")
			} else {
				s.SetGroup("a", shard.Group{Key: "workers", ETag: "1"})
			}
		}
		h.Advance(time.Minute)
	}
	status := h.nstanceMachine("m").Status
	ready := conditionOf(h.nstanceMachine("m"), v1beta1.ConditionReady)
	if h.requests() != 1 || ready != "True Ready: " || s.ByID[status.Shard].Requests["uid-of-m"] != status.InstanceID {
		t.Errorf("there were %d requests; the NstanceMachine has %s on %s, Ready is %q",
			h.requests(), status.InstanceID, status.Shard, ready)
	}
	return calls > at
}

// Some servers create another instance for each request, so a request that got a reply is not
// repeated before a restart.
func TestACreateRequestThatWasAnsweredIsNotRepeated(t *testing.T) {
	h := newHarness(t, newShards("a"), withShard(newNstanceMachine("m")))
	h.Fail(applyStatusM, apierrors.NewConflict(nstanceMachines.GroupResource(), "m", errFailed))
	for _, want := range [][]string{{createOnA, applyStatusM}, {applyStatusM}, {applyStatusM}} {
		if did, _, err := h.Sync(); !slices.Equal(did, want) || !apierrors.IsConflict(err) {
			t.Errorf("did %q, error %v, want %q", did, err, want)
		}
	}
	h.Fail(applyStatusM, nil)
	h.Expect(applyStatusM)
	if got := h.nstanceMachine("m").Status.InstanceID; got != "i-1" {
		t.Errorf("the instance is %q", got)
	}
}

// leader is one of several controllers; each has its own cache.
type leader struct {
	controller *Controller
	informers  infrastructure.Interface
}

// newLeader starts a controller whose cache is as old as the cache of the previous leader.
func (h *harness) newLeader() *leader {
	h.restart()
	return &leader{h.controller, h.Informers.Nstance}
}

// Two controllers, such as a leader that was paused and its successor, sync an NstanceMachine
// in turn with caches of different age. Any number of calls and writes fail, and once a backup
// without a status is restored. Exactly one instance exists at the end, and it is requested
// only after shard and request id were stored.
func TestOneInstanceDespiteTwoLeadersAndALostStatus(t *testing.T) {
	lostStatuses, overlaps := 0, 0
	seeds := tier.Seeds(t, tier.Pick(200, 400))
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			lostStatus, overlap := testTwoLeaders(t, rand.New(rand.NewPCG(seed, 0)))
			if lostStatus {
				lostStatuses++
			}
			if overlap {
				overlaps++
			}
		})
	}
	if runs := len(seeds); lostStatuses < runs/10 || overlaps < runs/10 {
		t.Errorf("of %d runs, the status was lost after the choice of a shard in %d, and both controllers requested the instance in %d",
			runs, lostStatuses, overlaps)
	}
}

// testTwoLeaders reports whether the status was lost when it had a shard, and whether both
// controllers have requested the instance.
func testTwoLeaders(t *testing.T, random *rand.Rand) (lostStatus, overlap bool) {
	s := newShards("a", "b")
	h := newHarness(t, s, newNstanceMachine("m"))
	requested := map[int]bool{}
	current, calm := 0, false
	s.OnCreate = func(id, requestID string) {
		requested[current] = true
		stored := h.nstanceMachine("m")
		if at := locate(stored); !hasFinalizer(stored) || at.shardID != id || at.requestID != requestID {
			t.Errorf("requested %q from shard %q, stored is %+v", requestID, id, at)
		}
	}
	next := func() fault {
		if calm || random.IntN(4) > 0 {
			return none
		}
		return conflict + fault(random.IntN(int(lost)))
	}
	h.failWrites(next)
	h.ShardClient = unreliableClient{s, next}
	for _, on := range s.ByID {
		on.Instances["i-1"] = shard.Instance{ID: "i-1", State: shard.InstanceRunning, ProviderID: "provider-i-1"}
	}
	leaders := []*leader{h.newLeader(), h.newLeader()}
	sync := func(i int) {
		current = i
		_, _ = leaders[i].controller.sync(h.Ctx, controllertest.Key("m"))
	}
	for range 40 {
		i := random.IntN(len(leaders))
		switch random.IntN(10) {
		case 0:
			if m := h.nstanceMachine("m"); !lostStatus && m.Status.Shard != "" {
				lostStatus = true
				h.change(func(m *v1beta1.NstanceMachine) { restored(m) })
			}
		case 1:
			// Another shard is chosen meanwhile.
			if _, ok := h.shardA().Groups["workers"]; ok {
				delete(h.shardA().Groups, "workers")
			} else {
				s.SetGroup("a", shard.Group{Key: "workers", ETag: "1"})
			}
		case 2:
			h.API.Show(leaders[i].informers)
		default:
			sync(i)
		}
		h.Advance(time.Second)
	}
	calm = true
	s.SetGroup("a", shard.Group{Key: "workers", ETag: "1"})
	for range 20 {
		for i, l := range leaders {
			h.API.Show(l.informers)
			sync(i)
		}
		h.Advance(time.Minute)
	}
	status := h.nstanceMachine("m").Status
	ready := conditionOf(h.nstanceMachine("m"), v1beta1.ConditionReady)
	if h.requests() != 1 || ready != "True Ready: " || s.ByID[status.Shard].Requests["uid-of-m"] != status.InstanceID {
		t.Errorf("there were %d requests; the NstanceMachine has %s on %s, Ready is %q",
			h.requests(), status.InstanceID, status.Shard, ready)
	}
	return lostStatus, len(requested) == len(leaders)
}
