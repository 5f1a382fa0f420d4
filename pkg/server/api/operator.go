// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package api serves operators over gRPC: it reads who calls from the client
// certificate, hands the call to the rooms below, and answers in the codes of
// the wire contract.
package api

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// OperatorService is the service of that name for one term of leading the shard.
// What is not here answers Unimplemented. All fields are mandatory.
type OperatorService struct {
	nstancev1.UnimplementedOperatorServiceServer

	Store          *groups.Store
	Instances      *instances.Store
	Board          *Board
	Errors         *Errors
	InstanceEvents *InstanceEvents
	Configuration  Configuration
	// Changed is called after a group or one of its instances has been changed
	// and before the caller is answered.
	Changed func(instance.GroupKey)

	orders orders
}

// ListGroups returns the groups of the caller's tenant, from memory.
func (s *OperatorService) ListGroups(ctx context.Context, _ *emptypb.Empty) (*nstancev1.ListGroupsResponse, error) {
	return &nstancev1.ListGroupsResponse{Groups: s.Board.list(clientFrom(ctx).Tenant)}, nil
}

// UpsertGroup makes or changes a group of the caller's tenant and answers when
// that is stored. InvalidArgument and FailedPrecondition are permanent until
// the request or the server's configuration is another.
func (s *OperatorService) UpsertGroup(ctx context.Context, request *nstancev1.UpsertGroupRequest) (*nstancev1.GroupStatus, error) {
	logger := klog.FromContext(ctx)
	key := instance.GroupKey{Tenant: clientFrom(ctx).Tenant, Group: request.GetKey()}
	wanted := request.GetConfig()
	logger.V(2).Info("Received group", "group", key.Group, "size", wanted.GetSize(), "removeFirst", len(request.GetRemoveFirst()))
	if err := groups.ValidateKey(key); err != nil {
		return nil, toStatus(err)
	}
	if wanted == nil {
		return nil, status.Errorf(codes.InvalidArgument, "group %s: config: Required value", key)
	}
	group, changed, err := s.Store.Upsert(ctx, key, groups.Change{
		Template:     wanted.GetTemplate(),
		Size:         wanted.GetSize(),
		RemoveFirst:  request.GetRemoveFirst(),
		InstanceType: wanted.GetInstanceType(),
		SubnetPools:  wanted.GetSubnets(),
		Vars:         wanted.GetVars(),
		Args:         wanted.GetArgs(),
	})
	if err != nil {
		logger.Error(err, "Group was not changed", "group", key.Group)
		return nil, toStatus(err)
	}
	if changed {
		s.Changed(key)
	}
	return s.Board.statusOf(group, managed(s.Instances.List(key))), nil
}

// DeleteGroup removes what operators stored of a group. A group that does not
// exist is deleted already. A dynamic group with instances is listed as deleting
// until the last of them is gone; UpsertGroup makes a new group of it.
func (s *OperatorService) DeleteGroup(ctx context.Context, request *nstancev1.DeleteGroupRequest) (*emptypb.Empty, error) {
	logger := klog.FromContext(ctx)
	key := instance.GroupKey{Tenant: clientFrom(ctx).Tenant, Group: request.GetKey()}
	logger.V(2).Info("Received deletion of group", "group", key.Group)
	changed, err := s.Store.Delete(ctx, key)
	if err != nil {
		logger.Error(err, "Group was not deleted", "group", key.Group)
		return nil, toStatus(err)
	}
	if changed {
		s.Changed(key)
	}
	return &emptypb.Empty{}, nil
}

// WatchGroups sends one upsert for every group of the caller's tenant, then one
// event whenever a group's status changes. Events of one group are in order. A
// caller that is slow gets fewer of them, the last one always.
func (s *OperatorService) WatchGroups(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.GroupEvent]) error {
	ctx := stream.Context()
	watcher := s.Board.watch(clientFrom(ctx).Tenant)
	defer s.Board.unwatch(watcher)
	for {
		event, err := watcher.next(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
}

// WatchErrors sends the errors of the caller's tenant and of the shard from now
// on; the header tells that it has begun. The same error of a group is sent at
// most once in 30 s. A caller that is slow misses the oldest.
func (s *OperatorService) WatchErrors(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.ErrorEvent]) error {
	ctx := stream.Context()
	watcher := s.Errors.watch(clientFrom(ctx).Tenant)
	defer s.Errors.unwatch(watcher)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		event, err := watcher.next(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
}

// toStatus gives an error of the store its code.
func toStatus(err error) error {
	_, invalid := errors.AsType[*groups.InvalidError](err)
	_, restricted := errors.AsType[*groups.RestrictedError](err)
	_, refused := errors.AsType[*config.InvalidError](err)
	switch {
	case invalid:
		return status.Error(codes.InvalidArgument, err.Error())
	case restricted, refused:
		return status.Error(codes.FailedPrecondition, err.Error())
	default:
		// Storage that fails now may work later. Internal would tell the
		// operator to give up (wire contract).
		return status.Error(codes.Unavailable, err.Error())
	}
}
