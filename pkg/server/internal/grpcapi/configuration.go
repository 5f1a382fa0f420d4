// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"

	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

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
	return &nstancev1.ConfigStatusResponse{
		Etag:         source.ETag,
		LastModified: timestamppb.New(source.LastModified),
		Size:         int64(len(source.Data)),
	}, nil
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
