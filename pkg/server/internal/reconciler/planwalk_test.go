// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/tier"
)

// TestPlansOfRandomWalk makes random changes, checks every plan, and carries it
// out completely or in part. From time to time it makes no further changes, and
// then the group must reach its desired state.
func TestPlansOfRandomWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(60, 300)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(seed)
			if seed%2 == 1 {
				w.agents = map[string]instance.Agent{}
			}
			for step := range 1500 {
				w.disturb()
				s := w.observe()
				actions, next := plan(s, w.now)
				if err := check(s, actions, w.now); err != nil {
					t.Fatalf("step %d: %v\nplan %v\nsize %d, instances %s", step, err, actions, s.size, describe(s.instances))
				}
				if !next.IsZero() && !next.After(w.now) {
					t.Fatalf("step %d: next at %v, which is not after %v", step, next, w.now)
				}
				steps := math.MaxInt
				if w.random.IntN(3) == 0 {
					steps = w.random.IntN(4)
				}
				w.carryOut(actions, steps)
				if step%100 == 99 {
					if err := w.rest(); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
					if err := w.shrink(); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
				}
			}
		})
	}
}

// rest lets the group reach its size without further changes: the provider
// accepts all requests and no instance fails or expires.
func (w *world) rest() error {
	w.rejecting, w.expiry = false, config.Expiry{}
	for id := range w.vms {
		w.become(id, instance.Running)
	}
	onDemand := map[string]bool{}
	for id, i := range w.records {
		_, known := w.vms[id]
		attempted := w.registrationTimeout > 0 && !w.attempted[id].Before(i.CreatedAt.Add(w.registrationTimeout))
		lost := !known && (i.ProviderID != "" || w.deleted || attempted)
		doomed := w.agents[id].Notice != nil || w.agents[id].State == instance.AgentAwaited
		if i.OnDemand && !i.BeingDeleted() && w.vms[id] != instance.Terminating && !lost && !doomed {
			onDemand[id] = true
		}
	}
	for round := range 200 {
		s := w.observe()
		actions, next := plan(s, w.now)
		if err := check(s, actions, w.now); err != nil {
			return fmt.Errorf("at rest: %w\nplan %v\nsize %d, instances %s", err, actions, s.size, describe(s.instances))
		}
		w.carryOut(actions, math.MaxInt)
		moved := len(actions) > 0
		for id, state := range w.vms {
			moved = moved || state != instance.Running
			w.settle(id)
			if w.agents != nil && state == instance.Running && w.agents[id].State != instance.AgentReporting {
				w.reports(id)
				moved = true
			}
		}
		if moved {
			continue
		}
		if !next.IsZero() {
			w.now = next
			continue
		}
		return w.settled(s, onDemand, round)
	}
	s := w.observe()
	return fmt.Errorf("does not settle: size %d, instances %s", s.size, describe(s.instances))
}

// shrink deletes requested instances of a stable group, while servers crash and
// others take over. Exactly those instances must be deleted, and none created.
func (w *world) shrink() error {
	w.removeFirst = map[string]bool{}
	var stay []string
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		w.removeFirst[id] = w.random.IntN(3) == 0
		switch {
		case w.records[id].OnDemand || !w.removeFirst[id]:
			// An on-demand instance does not belong to the group's size, so its
			// id has no effect.
			stay = append(stay, id)
		default:
			w.size--
		}
	}
	for range 20 {
		s := w.observe()
		actions, _ := plan(s, w.now)
		if err := check(s, actions, w.now); err != nil {
			return fmt.Errorf("shrinking: %w\nplan %v\nsize %d, instances %s", err, actions, s.size, describe(s.instances))
		}
		w.carryOut(actions, w.random.IntN(4))
		if w.random.IntN(4) == 0 {
			w.takeOver()
		}
	}
	if err := w.rest(); err != nil {
		return fmt.Errorf("shrinking: %w", err)
	}
	if left := slices.Sorted(maps.Keys(w.records)); !slices.Equal(left, stay) {
		return fmt.Errorf("%v were requested, and %v are left, want %v", w.removeFirst, left, stay)
	}
	return nil
}

// settled checks the state when there are no more actions.
func (w *world) settled(s state, onDemand map[string]bool, round int) error {
	managed := 0
	for _, i := range s.instances {
		if i.State != instance.Running || i.BeingDeleted() {
			return fmt.Errorf("after %d rounds %s is left", round, describe(s.instances))
		}
		delete(onDemand, i.ID)
		if !i.OnDemand {
			managed++
			if i.InfraConfigHash != s.infraConfigHash {
				return fmt.Errorf("%s is not rotated", i.ID)
			}
		}
	}
	if managed != s.size {
		return fmt.Errorf("after %d rounds %d managed instances, want %d: %s", round, managed, s.size, describe(s.instances))
	}
	if len(onDemand) > 0 {
		return fmt.Errorf("on-demand instances %v are missing", onDemand)
	}
	if len(w.vms) != len(s.instances) {
		return fmt.Errorf("the provider has %d instances, and there are records of %d", len(w.vms), len(s.instances))
	}
	return nil
}

func describe(instances []instance.Instance) string {
	instances = slices.Clone(instances)
	slices.SortFunc(instances, func(a, b instance.Instance) int { return oldestFirst(&a, &b) })
	text := ""
	for _, i := range instances {
		text += fmt.Sprintf("\n  %s on-demand %v, state %d, known %v, provider id %q, hash %q, drain %+v, deleted for %q, created %s",
			i.ID, i.OnDemand, i.State, i.Known, i.ProviderID, i.InfraConfigHash, i.Drain, i.DeleteReason, i.CreatedAt.Format(time.TimeOnly))
	}
	return text
}
