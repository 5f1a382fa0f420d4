// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"sync"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/instance"
)

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
