// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/tier"
)

// fault is the failure of one call.
type fault int

const (
	// none: the call succeeds.
	none fault = iota
	// conflict: another client has written before.
	conflict
	// failed: the call has no effect.
	failed
	// lost: the call has its effect, and the reply is lost.
	lost
)

var errFailed = errors.New("failed on purpose")

// failWrites makes writes of NstanceMachines fail as next decides.
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

// unreliableClient loses create requests and replies as next decides.
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

// One call or write fails, each in turn, with or without a restart and with or
// without a stale cache after it. There is always one instance, and it is requested
// only after shard and request id are stored.
func TestOneInstanceDespiteAnyFault(t *testing.T) { testEachFault(t, "", nil) }

// testEachFault calls testOneFault for every fault at every call. With a shard that declines,
// all combinations with restarts and stale caches are tested at full size only.
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

// testOneFault reports whether there were enough calls to reach the fault.
// The shard declines, "" for none, declines requests with an error until the first fault.
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

// Some servers create another instance for each request, so a request that was
// answered is not repeated before a restart.
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
