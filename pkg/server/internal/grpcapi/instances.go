// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"cmp"
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// GetInstanceStatus returns the status of a managed or on-demand instance of the
// client's tenant.
func (s *OperatorService) GetInstanceStatus(ctx context.Context, request *nstancev1.GetInstanceStatusRequest) (*nstancev1.InstanceStatusResponse, error) {
	i, err := s.instance(ctx, request.GetInstanceId())
	if err != nil {
		return nil, err
	}
	response := &nstancev1.InstanceStatusResponse{
		InstanceId:         i.ID,
		Tenant:             i.Tenant,
		Status:             instanceStatus(&i),
		CreatedAt:          timestamppb.New(i.CreatedAt),
		ProviderInstanceId: i.ProviderID,
	}
	if s.Health != nil {
		if _, at := s.Health.LastReport(i.ID); !at.IsZero() {
			response.LastSeen = timestamppb.New(at)
		}
	}
	if i.Drain != nil {
		response.DeleteAt = timestamppb.New(i.Drain.DeleteAt)
	}
	return response, nil
}

// DeleteInstance deletes an instance of the client's tenant at once, without a
// drain: draining the Node is the client's task. The group of a managed instance
// creates a replacement. The call returns when the request is stored, so that the
// next leader deletes the instance too.
func (s *OperatorService) DeleteInstance(ctx context.Context, request *nstancev1.DeleteInstanceRequest) (*nstancev1.DeleteInstanceResponse, error) {
	logger := klog.FromContext(ctx)
	i, err := s.instance(ctx, request.GetInstanceId())
	if err != nil {
		return nil, err
	}
	logger.V(2).Info("Received deletion of instance", "instance", i.ID, "group", i.Group)
	if !i.DeletedAt.IsZero() {
		return &nstancev1.DeleteInstanceResponse{Status: EventDeleted}, nil
	}
	// The request is stored also when the instance is being deleted for another
	// reason: a server that loses its cache may not find that reason again.
	if !i.DeletionRequestedAt.IsZero() {
		return &nstancev1.DeleteInstanceResponse{Status: EventDeleting}, nil
	}
	err = s.Instances.RequestDeletion(ctx, i.ID)
	if errors.Is(err, instancestore.ErrUnknown) {
		// It was deleted in the meantime.
		return &nstancev1.DeleteInstanceResponse{Status: EventDeleted}, nil
	}
	if err != nil {
		logger.Error(err, "The request to delete an instance was not stored", "instance", i.ID)
		return nil, toStatus(err)
	}
	s.logInstance(ctx, audit.DeleteInstance, &i, instance.ReasonRequested)
	// Only the reconciler sends events. With two senders, deleted might be sent
	// before deleting.
	s.Changed(i.Key())
	return &nstancev1.DeleteInstanceResponse{Status: EventDeleting}, nil
}

// AcknowledgeDrained deletes an instance of the client's tenant at once, because its Node is
// drained. The call returns when the acknowledgement is recorded. A repeated acknowledgement
// changes nothing.
//
// The server may not know of the drain: drains are in its cache only, and a new
// leader decides again. It trusts the operator nevertheless (docs/server.md#drains):
// a drained Node is of no use, so the instance is deleted like an unhealthy instance.
func (s *OperatorService) AcknowledgeDrained(ctx context.Context, request *nstancev1.DrainAckRequest) (*emptypb.Empty, error) {
	logger := klog.FromContext(ctx)
	i, err := s.instance(ctx, request.GetInstanceId())
	if err != nil {
		return nil, err
	}
	logger.V(2).Info("Received acknowledgement of a drain", "instance", i.ID, "group", i.Group, "draining", i.Drain != nil)
	if !i.DeletedAt.IsZero() {
		return &emptypb.Empty{}, nil
	}
	if err := s.Instances.Acknowledge(ctx, i.ID); err != nil {
		logger.Error(err, "The acknowledgement of a drain was not recorded", "instance", i.ID)
		return nil, toStatus(err)
	}
	if i.DeleteReason == "" && (i.Drain == nil || !i.Drain.Acknowledged) {
		reason := instance.ReasonUnhealthy
		if i.Drain != nil {
			reason = i.Drain.Reason
		}
		s.logInstance(ctx, audit.AcknowledgeDrain, &i, reason)
	}
	s.Changed(i.Key())
	return &emptypb.Empty{}, nil
}

// logInstance writes the audit line for a call that deletes an instance. A repeated call
// changes nothing and writes no line.
func (s *OperatorService) logInstance(ctx context.Context, action audit.Action, i *instance.Instance, reason string) {
	audit.Entry{
		Action: action, Shard: s.Store.Config().Shard.ID, Group: i.Group, Instance: i.ID,
		From: instanceStatus(i), To: EventDeleting, Writer: audit.RequestFrom(ctx).Writer, Reason: reason, Result: audit.Accepted,
	}.Log(ctx)
}

// instance returns the instance with an id. An instance of another tenant is
// PermissionDenied (docs/protocol.md#errors).
func (s *OperatorService) instance(ctx context.Context, id string) (instance.Instance, error) {
	if id == "" {
		return instance.Instance{}, status.Error(codes.InvalidArgument, "instance_id: Required value")
	}
	i, known := s.Instances.Get(id)
	if !known {
		return instance.Instance{}, status.Errorf(codes.NotFound, "instance %q is not known", id)
	}
	if i.Tenant != clientFrom(ctx).Tenant {
		return instance.Instance{}, status.Errorf(codes.PermissionDenied, "instance %q is another tenant's", id)
	}
	return i, nil
}

// instanceStatus returns the status of an instance on the wire. An instance that
// its provider has lost is terminating, since it never comes back.
func instanceStatus(i *instance.Instance) string {
	switch {
	case !i.DeletedAt.IsZero():
		return "terminated"
	case i.DeleteReason != "":
		return "terminating"
	case usable(i):
		return "running"
	}
	switch i.State {
	case instance.Pending, instance.Running, instance.Impaired:
		return "pending"
	case instance.Stopped:
		return "stopped"
	case instance.Failed:
		return "failed"
	default:
		return "terminating"
	}
}

// WatchInstances sends one pending_deletion for every draining instance of the
// caller's tenant, then live events. When the client receives the header, the
// watch has begun: no later event is lost, but an event may be sent twice. Events
// of one instance are in order. Earlier events are not sent
// (docs/protocol.md#watches).
func (s *OperatorService) WatchInstances(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.InstanceEvent]) error {
	tenant := clientFrom(stream.Context()).Tenant
	// The watcher queues events from here on. The present state is read afterwards and sent
	// first, so an older event never follows a newer one.
	watcher := s.InstanceEvents.watch(tenant)
	defer s.InstanceEvents.watchers.unwatch(watcher)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for _, i := range s.Instances.Draining(tenant) {
		if err := stream.Send(newInstanceEvent(&i, EventPendingDeletion)); err != nil {
			return err
		}
	}
	return watcher.send(stream)
}

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

// maxPendingInstanceEvents is the maximum number of pending events of one watcher, more than
// a group of the largest size has. No event may be lost: beyond the limit the watch ends, and
// the next watch begins with all draining instances.
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
	for _, address := range i.Addresses {
		event.Addresses = append(event.Addresses, address.String())
	}
	if i.Drain != nil {
		event.Reason = cmp.Or(i.DeleteReason, i.Drain.Reason)
		event.UnhealthyAt = timestamppb.New(i.Drain.StartedAt)
		event.DeleteAt = timestamppb.New(i.Drain.DeleteAt)
	}
	return event
}
