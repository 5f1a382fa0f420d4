// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// applyAgent adds what is known of the agent of an instance, as the store does.
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
