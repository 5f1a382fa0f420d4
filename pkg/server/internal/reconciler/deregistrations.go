// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// Targets knows which instances are targets of load balancers.
type Targets interface {
	// Waits reports whether an instance that is being deleted is a target of a load
	// balancer, or may be one.
	Waits(i *instance.Instance) bool
}

// requests are when this server first saw that the deletion of an instance was requested.
// The time in the record may be that of the clock of another server.
type requests struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// first returns when the request was first seen.
func (r *requests) first(id string, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, found := r.since[id]
	if !found {
		if r.since == nil {
			r.since = map[string]time.Time{}
		}
		since = now
		r.since[id] = since
	}
	return since
}

func (r *requests) remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, id)
}

// deregistrations returns until when the termination of each instance waits because it is
// a target of a load balancer, at the longest: until the deadline of its drain. An instance
// whose deletion a client has requested does not drain, and has the same time. An instance
// on which nothing runs has no connections to end.
func (r *reconciliation) deregistrations(instances []instance.Instance, drainTimeout time.Duration, now time.Time) map[string]time.Time {
	until := map[string]time.Time{}
	if r.Targets == nil {
		return until
	}
	for n := range instances {
		i := &instances[n]
		var end time.Time
		switch {
		case i.Drain != nil && (i.DeleteReason == "" || i.DeleteReason == instance.ReasonRequested):
			end = i.Drain.DeleteAt
			if end.Equal(i.Drain.StartedAt) {
				// It was lost, and acknowledged before it was decided on again.
				end = end.Add(drainTimeout)
			}
		case i.DeleteReason == instance.ReasonRequested:
			end = r.requests.first(i.ID, now).Add(drainTimeout)
		default:
			continue
		}
		if now.Before(end) && r.mayBeTarget(i) {
			until[i.ID] = end
		}
	}
	return until
}

// mayBeTarget reports whether something runs on an instance that is or may be a target.
func (r *reconciliation) mayBeTarget(i *instance.Instance) bool {
	return r.Targets != nil && i.Known && !i.Down() && i.State != instance.Terminating && r.Targets.Waits(i)
}

// awaitsDeregistration reports whether the termination of an instance waits because it is
// a target of a load balancer.
func (p *planner) awaitsDeregistration(i *instance.Instance) bool {
	return p.now.Before(p.deregisterUntil[i.ID])
}
