// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"cmp"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// The statuses in events of instances (docs/protocol.md#watches).
const (
	// EventPendingDeletion means that the instance's Node is to be drained.
	EventPendingDeletion = "pending_deletion"
	// EventDeleting means that the instance is being deleted.
	EventDeleting = "deleting"
	// EventDeleted means that the instance was deleted.
	EventDeleted = "deleted"
)

// instanceEventKey identifies an event. An instance has at most one pending event
// per status, so a slow stream misses nothing and its queue stays short.
type instanceEventKey struct {
	id, status string
}

// maxPendingInstanceEvents is the maximum number of events that are pending for one watcher,
// more than a group of the largest size has.
// No event may be lost: the watch ends, and the next one begins with all draining instances.
const maxPendingInstanceEvents = 50000

type instanceWatcher = watcher[instanceEventKey, nstancev1.InstanceEvent]

// InstanceEvents sends the deletions of instances to watchers when they happen.
// Nothing is kept for watchers that come later (docs/protocol.md#watches). The
// caller is responsible for the order of the events of one instance.
type InstanceEvents struct {
	watchers *watchers[instanceEventKey, nstancev1.InstanceEvent]
}

// NewInstanceEvents returns InstanceEvents without watchers.
func NewInstanceEvents() *InstanceEvents {
	return &InstanceEvents{watchers: newWatchers[instanceEventKey, nstancev1.InstanceEvent]()}
}

// Draining sends the watchers of the instance's tenant that its Node is to be
// drained. Like Deleting and Deleted it never waits for a watcher.
func (e *InstanceEvents) Draining(i instance.Instance) { e.publish(&i, EventPendingDeletion) }

// Deleting sends that the instance is being deleted.
func (e *InstanceEvents) Deleting(i instance.Instance) { e.publish(&i, EventDeleting) }

// Deleted sends that the instance was deleted.
func (e *InstanceEvents) Deleted(i instance.Instance) { e.publish(&i, EventDeleted) }

// Close closes all watches, present and future.
func (e *InstanceEvents) Close() {
	e.watchers.close()
}

func (e *InstanceEvents) publish(i *instance.Instance, status string) {
	e.watchers.publish(i.Tenant, instanceEventKey{id: i.ID, status: status}, newInstanceEvent(i, status))
}

// watch returns a watcher for the events from now on. The caller removes it with
// e.watchers.unwatch.
func (e *InstanceEvents) watch(tenant string) *instanceWatcher {
	return e.watchers.watch(&instanceWatcher{tenant: tenant, limit: maxPendingInstanceEvents, endAtLimit: true})
}

// newInstanceEvent returns the event of a status.
func newInstanceEvent(i *instance.Instance, status string) *nstancev1.InstanceEvent {
	event := &nstancev1.InstanceEvent{
		InstanceId:         i.ID,
		Tenant:             i.Tenant,
		ProviderInstanceId: i.ProviderID,
		Group:              i.Group,
		Status:             status,
		Reason:             i.DeleteReason,
	}
	if i.Drain != nil {
		event.Reason = cmp.Or(i.DeleteReason, i.Drain.Reason)
		event.UnhealthyAt = timestamppb.New(i.Drain.StartedAt)
		event.DeleteAt = timestamppb.New(i.Drain.DeleteAt)
	}
	return event
}
