// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"errors"

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

// AcknowledgeDrained deletes an instance of the client's tenant at once, because
// its Node is drained. The call returns when the acknowledgement is recorded. A
// repeated acknowledgement changes nothing.
//
// The server may not know of the drain: drains are in its cache only, and a new
// leader decides again. It trusts the operator nevertheless (docs/server.md#drains):
// a drained Node is of no use, so the instance is deleted like an unhealthy one.
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

// logInstance writes the line of the audit trail for a call that deletes an instance. A
// repeated call changes nothing and has none.
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
