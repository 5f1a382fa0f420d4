// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/instance"
)

const (
	// minStuckTimeout is the least time after which an instance that is still terminating no
	// longer blocks the rotation and expiry of its group.
	minStuckTimeout = 10 * time.Minute
	// stuckReportInterval is how often such an instance is reported.
	stuckReportInterval = time.Hour
)

// terminations are the instances that are being terminated. A new leader counts anew.
type terminations struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]map[string]*termination
}

// termination is the state of one terminating instance.
type termination struct {
	since, reported time.Time
}

// update returns the instances of a group that have been terminating for longer than timeout,
// the subset to report now, and when the next instance will exceed it. A zero duration means
// never.
func (t *terminations) update(key instance.GroupKey, instances []instance.Instance, now time.Time, timeout time.Duration) (
	stuck map[string]bool, report []string, next time.Duration,
) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.byGroup[key]
	current := map[string]*termination{}
	stuck = map[string]bool{}
	for n := range instances {
		i := &instances[n]
		if i.DeleteReason == "" && i.State != instance.Terminating {
			continue
		}
		known := before[i.ID]
		if known == nil {
			known = &termination{since: now}
		}
		current[i.ID] = known
		if left := timeout - now.Sub(known.since); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		stuck[i.ID] = true
		if known.reported.IsZero() || now.Sub(known.reported) >= stuckReportInterval {
			known.reported = now
			report = append(report, i.ID)
		}
		if next == 0 || stuckReportInterval < next {
			next = stuckReportInterval
		}
	}
	if t.byGroup == nil {
		t.byGroup = map[instance.GroupKey]map[string]*termination{}
	}
	t.byGroup[key] = current
	if len(current) == 0 {
		delete(t.byGroup, key)
	}
	return stuck, report, next
}

// findStuck returns the instances that do not terminate, and reports them.
func (r *reconciliation) findStuck(ctx context.Context, instances []instance.Instance, now time.Time) map[string]bool {
	timeout := max(minStuckTimeout, 2*r.config.Shard.RequestTimeout)
	stuck, report, next := r.terminations.update(r.key, instances, now, timeout)
	for _, id := range report {
		err := fmt.Errorf("instance %s has been terminating for longer than %s", id, timeout)
		klog.FromContext(ctx).Error(err, "An instance does not terminate", "instance", id)
		r.Failed(r.key, id, err)
	}
	if next > 0 {
		r.outcome.within(next)
	}
	return stuck
}

// ends are the instances whose provider has ended them, and that were reported.
type ends struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]map[string]bool
}

// update returns the instances of a group whose provider has ended them since the last update:
// neither this server nor a client has requested that.
func (e *ends) update(key instance.GroupKey, instances []instance.Instance) (report []*instance.Instance) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, current := e.byGroup[key], map[string]bool{}
	for n := range instances {
		i := &instances[n]
		if i.StateReason == "" || i.DeleteReason != "" || i.Drain != nil || i.State != instance.Terminating && !i.Down() {
			continue
		}
		current[i.ID] = true
		if !before[i.ID] {
			report = append(report, i)
		}
	}
	if e.byGroup == nil {
		e.byGroup = map[instance.GroupKey]map[string]bool{}
	}
	e.byGroup[key] = current
	if len(current) == 0 {
		delete(e.byGroup, key)
	}
	return report
}

// reportEnds reports why the provider has ended instances. Their replacements show that they
// have ended, and only the provider knows why.
func (r *reconciliation) reportEnds(ctx context.Context, instances []instance.Instance) {
	for _, i := range r.ends.update(r.key, instances) {
		err := fmt.Errorf("instance %s runs no more: %s", i.ID, i.StateReason)
		klog.FromContext(ctx).Error(err, "The provider has ended an instance", "instance", i.ID)
		r.Failed(r.key, i.ID, err)
	}
}

// Targets knows which instances are targets of load balancers.
type Targets interface {
	// Waits reports whether an instance that is being deleted is a target of a load
	// balancer, or may be one.
	Waits(i *instance.Instance) bool
}

// requests are when this server first saw that the deletion of an instance was requested. The
// time in the record may come from the clock of another server.
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

// deregistrations returns until when the termination of each instance waits because it is a
// target of a load balancer: at most until the deadline of its drain. If a client requested
// the deletion, the instance does not drain, but waits equally long. An instance on which
// nothing runs has no connections to end.
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
				// The drain was lost, and acknowledged before it was decided on again.
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

// causeOf returns the request that led to the deletion of an instance, the zero value if the
// server decided on it by itself. If another leader has seen the request that set the size or
// the configuration, only its generation is known.
func (r *reconciliation) causeOf(i *instance.Instance, reason string) audit.Request {
	if reason == instance.ReasonRequested {
		return i.DeletionRequest
	}
	if i.Drain != nil && i.Drain.Request != (audit.Request{}) {
		return i.Drain.Request
	}
	var cause audit.Request
	switch {
	case reason != instance.ReasonScaleDown && reason != instance.ReasonConfigDrift:
		return audit.Request{}
	case r.deleted:
		return r.Groups.DeletedBy(r.key)
	case reason == instance.ReasonScaleDown:
		cause = r.group.Causes.Size
	default:
		cause = r.group.Causes.Config
	}
	if cause == (audit.Request{}) && r.group.Revision != nil {
		cause.Generation = r.group.Revision.Generation
	}
	return cause
}

// log writes the audit line for a step of the deletion of an instance.
func (r *reconciliation) log(ctx context.Context, action audit.Action, i *instance.Instance, a action, to string) {
	cause := r.causeOf(i, a.reason)
	entry := audit.Entry{
		Action: action, Shard: r.config.Shard.ID, Instance: a.id, From: stateOf(i), To: to,
		Generation: cause.Generation, Writer: cause.Writer, Reason: a.reason, RequestID: cause.ID,
	}
	if !a.deleteAt.IsZero() {
		entry.DeleteAt = a.deleteAt
	}
	entry.Log(ctx)
}

// logged are the instances whose termination this server has logged.
type logged struct {
	mu  sync.Mutex
	ids map[string]struct{}
}

// add reports whether the instance is new.
func (l *logged) add(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.ids[id]; known {
		return false
	}
	if l.ids == nil {
		l.ids = map[string]struct{}{}
	}
	l.ids[id] = struct{}{}
	return true
}

func (l *logged) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ids, id)
}
