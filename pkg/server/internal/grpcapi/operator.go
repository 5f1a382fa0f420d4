// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package grpcapi serves operators over gRPC: it reads the client from its
// certificate, calls the packages of the server, and returns the status codes of
// docs/protocol.md#errors.
package grpcapi

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents/agenthealth"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/provider"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// OperatorService implements the gRPC service OperatorService for one term of leadership of
// the shard. Methods that it does not define return Unimplemented. All fields but Health and
// Capacity are mandatory.
type OperatorService struct {
	nstancev1.UnimplementedOperatorServiceServer

	Store          *groups.Store
	Instances      *instancestore.Store
	Statuses       *StatusCache
	Errors         *Errors
	InstanceEvents *InstanceEvents
	Configuration  Configuration
	// Health has the reports of agents. It is nil if the server serves no agents.
	Health *agenthealth.Tracker
	// Capacity reports lacking capacity of the provider. It is nil if the provider does not
	// know its capacity before a request.
	Capacity provider.CapacityChecker
	// Changed is called after a group or one of its instances was changed and
	// before the client gets its response.
	Changed func(instance.GroupKey)

	createRequests createRequests
}

// ListGroups returns the groups of the client's tenant from the cache, or only those that have changed
// since the version that the client knows (docs/protocol.md#lists-of-changes).
func (s *OperatorService) ListGroups(ctx context.Context, _ *emptypb.Empty) (*nstancev1.ListGroupsResponse, error) {
	return s.Statuses.listSince(clientFrom(ctx).Tenant, knownVersion(ctx)), nil
}

// knownVersion returns the version of the groups that the client of a call knows, "" for none.
func knownVersion(ctx context.Context) string {
	if versions := metadata.ValueFromIncomingContext(ctx, identifier.GroupsVersionKey); len(versions) == 1 {
		return versions[0]
	}
	return ""
}

// UpsertGroup creates or changes a group of the client's tenant and returns when
// it is stored. InvalidArgument and FailedPrecondition are permanent until the
// request or the server's configuration changes.
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
	rotation, err := rotationFrom(request.GetRotation())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "group %s: %v", key, err)
	}
	group, changed, err := s.Store.Upsert(ctx, key, groups.Change{
		Settings:    groups.SettingsOf(wanted),
		Declarative: request.GetDeclarative(),
		Size:        wanted.GetSize(),
		RemoveFirst: request.GetRemoveFirst(),
		Rotation:    rotation,
		Replace:     request.GetReplace(),
		Args:        wanted.GetArgs(),
		Revision:    revisionFrom(request.GetRevision()),
		Replaces:    revisionFrom(request.GetReplaces()),
	})
	if err != nil {
		logger.Error(err, "Group was not changed", "group", key.Group)
		s.Statuses.Refresh(key) // its revision may be hidden no longer
		return nil, toStatus(err)
	}
	if changed {
		s.Changed(key)
	}
	return s.Statuses.get(group), nil
}

// DeleteGroup removes what operators stored of a group. Deleting a group that does
// not exist succeeds. A dynamic group with instances is listed as deleting until
// its last instance is deleted; UpsertGroup creates it again.
func (s *OperatorService) DeleteGroup(ctx context.Context, request *nstancev1.DeleteGroupRequest) (*emptypb.Empty, error) {
	logger := klog.FromContext(ctx)
	key := instance.GroupKey{Tenant: clientFrom(ctx).Tenant, Group: request.GetKey()}
	logger.V(2).Info("Received deletion of group", "group", key.Group)
	changed, err := s.Store.Delete(ctx, key, revisionFrom(request.GetRevision()))
	if err != nil {
		logger.Error(err, "Group was not deleted", "group", key.Group)
		return nil, toStatus(err)
	}
	if changed {
		s.Changed(key)
	}
	return &emptypb.Empty{}, nil
}

// WatchGroups sends one upsert for every group of the client's tenant, then one
// event whenever a group's status changes. Events of one group are in order. A
// slow client gets fewer events, but always the latest.
func (s *OperatorService) WatchGroups(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.GroupEvent]) error {
	watcher := s.Statuses.watch(clientFrom(stream.Context()).Tenant)
	defer s.Statuses.watchers.unwatch(watcher)
	return watcher.send(stream)
}

// WatchErrors sends the errors of the client's tenant and of the shard from now on. When the
// client receives the header, the watch has begun. The same error of a group is sent at most
// once in 30 s. A slow client loses the oldest errors.
func (s *OperatorService) WatchErrors(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.ErrorEvent]) error {
	watcher := s.Errors.watch(clientFrom(stream.Context()).Tenant)
	defer s.Errors.watchers.unwatch(watcher)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	return watcher.send(stream)
}

// toStatus returns the gRPC status of an error of a store.
func toStatus(err error) error {
	_, invalid := errors.AsType[*groups.InvalidError](err)
	_, restricted := errors.AsType[*groups.RestrictedError](err)
	_, invalidConfig := errors.AsType[*config.InvalidError](err)
	stale, isStale := errors.AsType[*groups.StaleError](err)
	switch {
	case isStale:
		return staleStatus(stale).Err()
	case invalid:
		return status.Error(codes.InvalidArgument, err.Error())
	case restricted, invalidConfig:
		return status.Error(codes.FailedPrecondition, err.Error())
	default:
		// Storage that fails now may work later. With Internal the operator would
		// not retry (docs/protocol.md#errors).
		return status.Error(codes.Unavailable, err.Error())
	}
}

// Configuration is the configuration of the shard.
type Configuration interface {
	// InForce returns the configuration in force.
	InForce() config.Source
	// Refresh reads the configuration again and puts it in force. It returns the
	// previous and the new configuration, which are the same on an error.
	Refresh(ctx context.Context) (before, after config.Source, err error)
}

// GetConfigStatus returns which configuration is in force.
func (s *OperatorService) GetConfigStatus(context.Context, *emptypb.Empty) (*nstancev1.ConfigStatusResponse, error) {
	source := s.Configuration.InForce()
	status := &nstancev1.ConfigStatusResponse{Etag: source.ETag, Size: int64(len(source.Data))}
	if !source.LastModified.IsZero() {
		status.LastModified = timestamppb.New(source.LastModified)
	}
	return status, nil
}

// RefreshConfig puts the configuration file in force if it changed. It returns when
// that is done. A file with mistakes gives FailedPrecondition with all of them, and
// the previous configuration stays in force.
func (s *OperatorService) RefreshConfig(ctx context.Context, _ *emptypb.Empty) (*nstancev1.RefreshConfigResponse, error) {
	klog.FromContext(ctx).V(2).Info("Received request to read the configuration again")
	before, after, err := s.Configuration.Refresh(ctx)
	if err != nil {
		return nil, toStatus(config.For(clientFrom(ctx).Tenant, err))
	}
	return &nstancev1.RefreshConfigResponse{Updated: before.ETag != after.ETag, PrevEtag: before.ETag, Etag: after.ETag}, nil
}

// staleStatus returns FailedPrecondition with the detail that distinguishes a stale
// request from a rejected configuration.
func staleStatus(err *groups.StaleError) *status.Status {
	metadata := map[string]string{nstancev1.MetadataRevision: err.Revision.String()}
	if err.Stored != nil {
		metadata[nstancev1.MetadataStoredRevision] = err.Stored.String()
	}
	return withReason(codes.FailedPrecondition, err.Error(), nstancev1.ReasonStaleRevision, metadata)
}

// withReason returns a status with a detail that distinguishes it from other statuses with
// the same code.
func withReason(code codes.Code, message, reason string, metadata map[string]string) *status.Status {
	// A status that cannot be encoded loses its detail.
	plain := status.New(code, validText(message))
	detailed, failure := plain.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: nstancev1.ErrorDomain, Metadata: metadata})
	if failure != nil {
		return plain
	}
	return detailed
}
