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
	"nstance.dev/operator/pkg/shard"
)

// fault is what goes wrong with one call.
type fault int

const (
	// fine: nothing goes wrong.
	fine fault = iota
	// conflicting: somebody else was faster.
	conflicting
	// broken: the call fails and has no effect.
	broken
	// lost: the call has its effect, and the answer is lost.
	lost
)

var errBroken = errors.New("something broke")

// sabotage has writes to machines go wrong as next says.
func (h *harness) sabotage(next func() fault) {
	chain := slices.Clone(h.ReactionChain)
	h.PrependReactor("patch", machines.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch next() {
		case conflicting:
			return true, nil, apierrors.NewConflict(machines.GroupResource(), "m", errBroken)
		case broken:
			return true, nil, apierrors.NewInternalError(errBroken)
		case lost:
			for _, reactor := range chain {
				if !reactor.Handles(action) {
					continue
				}
				if handled, _, _ := reactor.React(action); handled {
					break
				}
			}
			return true, nil, apierrors.NewTimeoutError("no answer", 1)
		default:
			return false, nil, nil
		}
	})
}

// reliable is another name for Shards, which has a method of that name.
type reliable = Shards

// unreliable are shards whose orders go wrong as next says.
type unreliable struct {
	reliable

	next func() fault
}

func (u unreliable) CreateInstance(ctx context.Context, id, request string, order shard.InstanceOrder) (shard.Instance, error) {
	failed := u.next()
	if failed == conflicting || failed == broken {
		return shard.Instance{}, unreachable
	}
	instance, err := u.reliable.CreateInstance(ctx, id, request, order)
	if failed == lost {
		return shard.Instance{}, unreachable
	}
	return instance, err
}

// Whatever goes wrong, one time, at whatever write or call, and whether or not
// another process goes on with a cache as old as that of the first: there is one
// instance, and none is asked for before it is written down where.
func TestOneInstanceWhateverGoesWrong(t *testing.T) {
	for _, failure := range []fault{conflicting, broken, lost} {
		for _, restarted := range []bool{false, true} {
			for _, stale := range []int{0, 2} {
				reached := true
				for at := 0; reached; at++ {
					name := fmt.Sprintf("fault %d at call %d, restarted %t, stale for %d syncs", failure, at, restarted, stale)
					t.Run(name, func(t *testing.T) { reached = testOneFault(t, failure, at, restarted, stale) })
				}
			}
		}
	}
}

// testOneFault tells whether there are as many calls.
func testOneFault(t *testing.T, failure fault, at int, restarted bool, stale int) (reached bool) {
	// The next choice would be another shard.
	s := newShards("a", "b")
	machine, neighbour := newMachine("m"), claiming(newMachine("neighbour"))
	h := newHarness(t, s, machine, neighbour)
	s.ordered = func(id, request string) {
		if stored := h.machine("m"); !held(stored) || stored.Status.Shard != id || stored.Status.RequestID != request {
			t.Errorf("asked shard %q for %q, stored is %+v", id, request, stored.Status)
		}
	}
	calls := 0
	next := func() fault {
		calls++
		if calls == at+1 {
			return failure
		}
		return fine
	}
	h.sabotage(next)
	h.restart(unreliable{s, next})
	s.run()

	left := 0
	for range 30 {
		if left == 0 {
			h.Show(h.informers)
		}
		before := calls
		_, _, err := h.syncStale()
		left = max(left-1, 0)
		if err != nil && before <= at && calls > at {
			left = stale
			if restarted {
				h.restart(unreliable{s, next})
			}
			// Others have come and gone meanwhile.
			s.byID["a"].hasGroup, s.byID["b"].hasGroup = !s.byID["a"].hasGroup, true
		}
		h.after(time.Minute)
	}
	got := h.machine("m")
	if len(s.requested) != 1 || told(got, v1beta1.ConditionReady) != "True Ready: " || s.requested[got.Status.Shard+"/uid-of-m"] != got.Status.InstanceID {
		t.Errorf("asked for are %v, the machine has %s on %s, Ready is %q",
			s.requested, got.Status.InstanceID, got.Status.Shard, told(got, v1beta1.ConditionReady))
	}
	return calls > at
}

// Some servers make another instance for each order. What one has answered is not
// asked again, as long as the process lives.
func TestAnAnswerIsNotAskedForAgain(t *testing.T) {
	h := newHarness(t, newShards("a"), claiming(newMachine("m")))
	h.Fail(applyStatusM, apierrors.NewConflict(machines.GroupResource(), "m", errBroken))
	for _, want := range [][]string{{createOnA, applyStatusM}, {applyStatusM}, {applyStatusM}} {
		if did, _, err := h.sync(); !slices.Equal(did, want) || !apierrors.IsConflict(err) {
			t.Errorf("did %q, error %v, want %q", did, err, want)
		}
	}
	h.Fail(applyStatusM, nil)
	h.expect(applyStatusM)
	if got := h.machine("m").Status.InstanceID; got != "i-1" {
		t.Errorf("the instance is %q", got)
	}
}
