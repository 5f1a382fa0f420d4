// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// GetInstanceStatus tells what an instance of the caller's tenant is doing, be it
// managed or on-demand.
func (s *OperatorService) GetInstanceStatus(ctx context.Context, request *nstancev1.GetInstanceStatusRequest) (*nstancev1.InstanceStatusResponse, error) {
	i, err := s.instance(ctx, request.GetInstanceId())
	if err != nil {
		return nil, err
	}
	// There is no last report as long as there are no agents that send any.
	answer := &nstancev1.InstanceStatusResponse{
		InstanceId:         i.ID,
		Tenant:             i.Tenant,
		Status:             instanceStatus(&i),
		CreatedAt:          timestamppb.New(i.CreatedAt),
		ProviderInstanceId: i.ProviderID,
	}
	if i.Drain != nil {
		answer.DeleteAt = timestamppb.New(i.Drain.DeleteAt)
	}
	return answer, nil
}

// DeleteInstance ends an instance of the caller's tenant at once, without a
// drain: whoever calls has seen to what runs on it. The group of a managed one
// makes another in its place. It answers when the request is durable: whichever
// server leads then, the instance goes.
func (s *OperatorService) DeleteInstance(ctx context.Context, request *nstancev1.DeleteInstanceRequest) (*nstancev1.DeleteInstanceResponse, error) {
	logger := klog.FromContext(ctx)
	i, err := s.instance(ctx, request.GetInstanceId())
	if err != nil {
		return nil, err
	}
	if !i.DeletedAt.IsZero() {
		return &nstancev1.DeleteInstanceResponse{Status: EventDeleted}, nil
	}
	// One that is ending for another reason is noted too: a server that loses the
	// cache may not find that reason again.
	if !i.DeletionRequestedAt.IsZero() {
		return &nstancev1.DeleteInstanceResponse{Status: EventDeleting}, nil
	}
	err = s.Instances.RequestDeletion(ctx, i.ID)
	if errors.Is(err, instances.ErrUnknown) {
		// It went meanwhile.
		return &nstancev1.DeleteInstanceResponse{Status: EventDeleted}, nil
	}
	if err != nil {
		logger.Error(err, "The request to delete was not stored", "instance", i.ID)
		return nil, toStatus(err)
	}
	logger.Info("Instance is to end on request", "instance", i.ID, "group", i.Group)
	// The reconciler tells those who watch: told of by two, an end may come before
	// its beginning.
	s.Changed(i.Key())
	return &nstancev1.DeleteInstanceResponse{Status: EventDeleting}, nil
}

// AcknowledgeDrained ends an instance of the caller's tenant at once, since what
// ran on it has moved away. It answers when that is noted. An acknowledgement
// that comes again changes nothing.
//
// The server may not know that the instance is to drain: it keeps that in its
// cache only, and a server that has become the leader since decides anew. The
// operator is trusted all the same (server document): a Node that it has emptied
// is of no use to anyone, so the instance goes as an unhealthy one does.
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
		logger.Error(err, "The acknowledgement was not noted", "instance", i.ID)
		return nil, toStatus(err)
	}
	s.Changed(i.Key())
	return &emptypb.Empty{}, nil
}

// instance returns the instance of an id, or the status of the wire contract: an
// instance of another tenant is PermissionDenied.
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

// instanceStatus returns what an instance is doing in the words of the wire, of
// which there may be more some day. One that its provider has lost will never be
// back, and is on its way out.
func instanceStatus(i *instance.Instance) string {
	switch {
	case !i.DeletedAt.IsZero():
		return "terminated"
	case i.DeleteReason != "":
		return "terminating"
	case runs(i):
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
