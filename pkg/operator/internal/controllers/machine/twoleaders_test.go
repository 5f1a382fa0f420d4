// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/tier"
)

// leader is one of several controllers, with a cache of its own.
type leader struct {
	controller *Controller
	informers  infrastructure.Interface
}

// newLeader starts a controller whose cache is as old as that of the one before.
func (h *harness) newLeader() *leader {
	h.restart()
	return &leader{h.controller, h.Informers.Nstance}
}

// Two controllers sync an NstanceMachine in turn with caches of different age, as a leader
// that was paused and the one that replaced it. Any number of calls and writes fails, and
// once a backup is restored that has no status. There is always one instance, and it is
// requested only after shard and request id are stored.
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
