// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// world is an in-memory model of one group, a server that carries out plans,
// and a provider.
type world struct {
	state
	random *rand.Rand
	now    time.Time
	nextID int
	// records are the durable instances. Another server does not know Drain and
	// DeleteReason.
	records map[string]*instance.Instance
	// tombstones are the deleted instances that were not purged.
	tombstones map[string]instance.Instance
	// vms are the states of the provider's instances by instance id.
	vms map[string]instance.State
	// rejecting is true while the provider rejects create requests.
	rejecting bool
	// agents are the states of the agents of running instances, by instance id. It is nil if
	// instances run no agents.
	agents map[string]instance.Agent
	// balancers decides which instances that drain are targets of load balancers.
	balancers *rand.Rand
	// grants decides about the grant of the rotation. It is nil if the operator sends no grants.
	grants *rand.Rand
}

func newWorld(seed uint64) *world {
	w := &world{
		random:     rand.New(rand.NewPCG(seed, 0)),
		balancers:  rand.New(rand.NewPCG(seed, 1)),
		now:        planTime,
		records:    map[string]*instance.Instance{},
		tombstones: map[string]instance.Instance{},
		vms:        map[string]instance.State{},
	}
	w.infraConfigHash, w.attempted = "hash 0", map[string]time.Time{}
	return w
}

// observe returns the input of a plan, in random order.
func (w *world) observe() state {
	s := w.state
	s.instances, s.providerIDs, s.deregisterUntil = nil, map[string]string{}, map[string]time.Time{}
	for id := range s.removeFirst {
		i, found := w.tombstones[id]
		s.replaced = s.replaced || found && !i.OnDemand && isReplaced(&i)
	}
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		i := *w.records[id]
		var vm instance.State
		if vm, i.Known = w.vms[id]; i.Known {
			i.State = vm
		} else if i.ProviderID != "" {
			i.State = instance.Missing
		} else {
			i.State = instance.Pending
		}
		if i.Known && i.State != instance.Pending && i.ProviderID == "" {
			s.providerIDs[id] = "vm-" + id
		}
		w.applyAgent(&i)
		if i.Drain != nil && !i.Down() && w.balancers.IntN(2) == 0 {
			s.deregisterUntil[id] = i.Drain.DeleteAt
		}
		s.instances = append(s.instances, i)
	}
	w.random.Shuffle(len(s.instances), func(a, b int) {
		s.instances[a], s.instances[b] = s.instances[b], s.instances[a]
	})
	return s
}

// add creates a record.
func (w *world) add(onDemand bool) string {
	w.nextID++
	id := fmt.Sprintf("i%05d", w.nextID)
	w.records[id] = &instance.Instance{Record: instance.Record{
		ID: id, OnDemand: onDemand, InfraConfigHash: w.infraConfigHash, CreatedAt: w.now,
	}}
	return id
}

// carryOut simulates the reconciler. It stops after a number of steps, each of
// which is a write or a call, to simulate a crash.
func (w *world) carryOut(actions []action, steps int) {
	rejected := false
	step := func() bool {
		steps--
		return steps >= 0
	}
	request := func(id string) {
		if !rejected && w.rejecting {
			w.attempted[id] = w.now
		}
		if rejected = rejected || w.rejecting; !rejected && step() {
			if _, known := w.vms[id]; !known {
				w.vms[id] = instance.Pending
			}
		}
	}
	for _, a := range actions {
		i := w.records[a.id]
		switch a.verb {
		case setProviderID:
			if step() {
				i.ProviderID = a.providerID
			}
		case removeRecord:
			if step() {
				w.tombstones[a.id] = *i
				delete(w.records, a.id)
			}
		case drain:
			if step() {
				i.Drain = &instance.Drain{Reason: a.reason, StartedAt: w.now, DeleteAt: a.deleteAt}
			}
		case terminate, terminateAgain:
			if step() {
				i.DeleteReason = a.reason
			}
			if step() {
				if _, known := w.vms[a.id]; known {
					w.vms[a.id] = instance.Terminating
					if a.reason == instance.ReasonUnregistered && !i.OnDemand {
						w.createAfter = w.now.Add(time.Minute)
					}
				}
			}
		case create:
			if !rejected && step() {
				request(w.add(false))
			}
		case createRecorded:
			request(a.id)
		}
	}
}

// any returns a random instance, and false when there is none.
func (w *world) any() (*instance.Instance, bool) {
	if len(w.records) == 0 {
		return nil, false
	}
	ids := slices.Sorted(maps.Keys(w.records))
	return w.records[ids[w.random.IntN(len(ids))]], true
}

// disturb makes one change that is not caused by a plan.
func (w *world) disturb() {
	w.changeGrant()
	i, found := w.any()
	if found && w.agents != nil && w.random.IntN(3) == 0 {
		w.disturbAgent(i)
		return
	}
	switch event := w.random.IntN(25); {
	case event == 0:
		w.size, w.deleted = w.random.IntN(6), false
	case event == 1 && w.random.IntN(4) == 0:
		w.size, w.deleted = 0, true
	case event == 2:
		w.infraConfigHash = fmt.Sprint("hash ", w.random.IntN(100))
	case event == 3:
		w.drainTimeout = time.Duration(w.random.IntN(3)) * 5 * time.Minute
	case event == 4:
		w.expiry.EligibleAge = time.Duration(w.random.IntN(3)) * 40 * time.Minute
		w.expiry.ForcedAge = time.Duration(w.random.IntN(3)) * 60 * time.Minute
		w.expiry.OnDemandAge = time.Duration(w.random.IntN(3)) * 60 * time.Minute
	case event == 5:
		w.registrationTimeout = time.Duration(w.random.IntN(2)) * 5 * time.Minute
	case event == 6:
		w.rejecting = !w.rejecting
	case event == 7:
		w.add(true)
	case event == 8:
		w.takeOver()
	case event == 9:
		w.requestRemoval(w.random.IntN(4), w.random.IntN(4) > 0)
	case event < 13:
		w.now = w.now.Add(time.Duration(w.random.IntN(600)) * time.Second)
	case !found:
	case event == 13:
		// The operator may acknowledge any instance, even one that does not
		// drain.
		if i.Drain == nil {
			i.Drain = &instance.Drain{Reason: instance.ReasonUnhealthy, DeleteAt: w.now}
		}
		i.Drain.Acknowledged = true
	case event == 14:
		i.DeleteReason = instance.ReasonRequested
	case event == 15:
		delete(w.vms, i.ID)
	case event == 16:
		w.become(i.ID, instance.Impaired, instance.Stopped, instance.Failed, instance.Terminating)
	case event == 17:
		w.become(i.ID, instance.Running)
	default:
		w.settle(i.ID)
	}
}

// requestRemoval sets random instances, existing or deleted ones, to delete
// first. With shrink it reduces the size by as many.
func (w *world) requestRemoval(count int, shrink bool) {
	ids := slices.Concat(slices.Sorted(maps.Keys(w.records)), slices.Sorted(maps.Keys(w.tombstones)))
	w.removeFirst = map[string]bool{"unknown": true}
	for range min(count, len(ids)) {
		w.removeFirst[ids[w.random.IntN(len(ids))]] = true
	}
	if shrink {
		w.size = max(0, w.size-count)
	}
}

// takeOver starts another server, which knows no drains, tombstones or
// attempts.
func (w *world) takeOver() {
	for _, i := range w.records {
		i.Drain, i.DeleteReason = nil, ""
	}
	clear(w.tombstones)
	clear(w.attempted)
	w.createAfter = time.Time{}
	for id, a := range w.agents {
		next := instance.Agent{State: instance.AgentUnknown, Since: w.now}
		if a.State == instance.AgentAwaited {
			next.State = instance.AgentAwaited
		}
		w.agents[id] = next
	}
}

// become changes the state of a VM that exists and is not terminating.
func (w *world) become(id string, states ...instance.State) {
	if state, known := w.vms[id]; known && state != instance.Terminating {
		w.vms[id] = states[w.random.IntN(len(states))]
	}
}

// settle starts a pending VM, and deletes a terminating VM.
func (w *world) settle(id string) {
	switch state, known := w.vms[id]; {
	case known && state == instance.Pending:
		w.vms[id] = instance.Running
	case known && state == instance.Terminating:
		delete(w.vms, id)
	}
}

// applyAgent adds the state of the agent of an instance, as the store does.
func (w *world) applyAgent(i *instance.Instance) {
	if w.agents == nil || !i.Known {
		return
	}
	switch i.State {
	case instance.Pending:
		i.Agent.State = instance.AgentAwaited
		return
	case instance.Running, instance.Impaired:
	default:
		return
	}
	a, found := w.agents[i.ID]
	if !found {
		a = instance.Agent{State: instance.AgentAwaited, Since: w.now}
		w.agents[i.ID] = a
	}
	if i.Agent = a; a.State != instance.AgentAwaited {
		i.Registration = &instance.Registration{}
	}
	switch {
	case i.State == instance.Impaired:
	case a.State == instance.AgentAwaited:
		i.State = instance.Pending
	case a.State == instance.AgentLost:
		i.State = instance.Impaired
	}
}

// disturbAgent makes one change of the agent of an instance.
func (w *world) disturbAgent(i *instance.Instance) {
	a, found := w.agents[i.ID]
	if !found {
		return
	}
	switch event := w.random.IntN(8); {
	case event < 5:
		w.reports(i.ID)
		return
	case event == 5 && a.State != instance.AgentAwaited:
		a.State = instance.AgentLost
	case event == 6 && a.State == instance.AgentReporting && w.random.IntN(3) == 0:
		a.Notice = &instance.Notice{Action: "terminate"}
		if w.random.IntN(2) == 0 {
			a.Notice.Deadline = w.now.Add(time.Duration(w.random.IntN(10)) * time.Minute)
		}
	case event == 7:
		w.createAfter = time.Time{}
	}
	w.agents[i.ID] = a
}

// reports makes the agent of an instance that runs report, for the first time or again.
func (w *world) reports(id string) {
	if state := w.vms[id]; state != instance.Running && state != instance.Impaired {
		return
	}
	a := w.agents[id]
	if a.State != instance.AgentReporting {
		a.State, a.Since = instance.AgentReporting, w.now
	}
	w.agents[id] = a
	w.createAfter = time.Time{}
}

// exists reports whether an instance exists and has come up.
func exists(i *instance.Instance) bool {
	return i.Known && i.Agent.State != instance.AgentAwaited
}

// abandoned reports whether an instance that is coming up has an older configuration.
func (c *planChecker) abandoned(i *instance.Instance) bool {
	return i.Known && !exists(i) && c.infraConfigHash != "" && i.InfraConfigHash != c.infraConfigHash
}

// unregistered reports whether the agent of an instance has not registered in time.
func (c *planChecker) unregistered(i *instance.Instance) bool {
	a := i.Agent
	return a.State == instance.AgentAwaited && !a.Since.IsZero() && c.registrationTimeout > 0 && c.now.Sub(a.Since) >= c.registrationTimeout
}
