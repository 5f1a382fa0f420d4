// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// GetConfigStatus is that of the term.
func (g *Gate) GetConfigStatus(ctx context.Context, request *emptypb.Empty) (*nstancev1.ConfigStatusResponse, error) {
	return pass(ctx, g, request, (*OperatorService).GetConfigStatus)
}

// RefreshConfig is that of the term.
func (g *Gate) RefreshConfig(ctx context.Context, request *emptypb.Empty) (*nstancev1.RefreshConfigResponse, error) {
	return pass(ctx, g, request, (*OperatorService).RefreshConfig)
}

// ListGroups is that of the term.
func (g *Gate) ListGroups(ctx context.Context, request *emptypb.Empty) (*nstancev1.ListGroupsResponse, error) {
	return pass(ctx, g, request, (*OperatorService).ListGroups)
}

// UpsertGroup is that of the term.
func (g *Gate) UpsertGroup(ctx context.Context, request *nstancev1.UpsertGroupRequest) (*nstancev1.GroupStatus, error) {
	return pass(ctx, g, request, (*OperatorService).UpsertGroup)
}

// DeleteGroup is that of the term.
func (g *Gate) DeleteGroup(ctx context.Context, request *nstancev1.DeleteGroupRequest) (*emptypb.Empty, error) {
	return pass(ctx, g, request, (*OperatorService).DeleteGroup)
}

// CreateInstance is that of the term.
func (g *Gate) CreateInstance(ctx context.Context, request *nstancev1.CreateInstanceRequest) (*nstancev1.CreateInstanceResponse, error) {
	return pass(ctx, g, request, (*OperatorService).CreateInstance)
}

// DeleteInstance is that of the term.
func (g *Gate) DeleteInstance(ctx context.Context, request *nstancev1.DeleteInstanceRequest) (*nstancev1.DeleteInstanceResponse, error) {
	return pass(ctx, g, request, (*OperatorService).DeleteInstance)
}

// GetInstanceStatus is that of the term.
func (g *Gate) GetInstanceStatus(ctx context.Context, request *nstancev1.GetInstanceStatusRequest) (*nstancev1.InstanceStatusResponse, error) {
	return pass(ctx, g, request, (*OperatorService).GetInstanceStatus)
}

// AcknowledgeDrained is that of the term.
func (g *Gate) AcknowledgeDrained(ctx context.Context, request *nstancev1.DrainAckRequest) (*emptypb.Empty, error) {
	return pass(ctx, g, request, (*OperatorService).AcknowledgeDrained)
}

// SleepTenant is that of the term.
func (g *Gate) SleepTenant(ctx context.Context, request *nstancev1.SleepTenantRequest) (*nstancev1.SleepTenantResponse, error) {
	return pass(ctx, g, request, (*OperatorService).SleepTenant)
}

// WakeTenant is that of the term.
func (g *Gate) WakeTenant(ctx context.Context, request *nstancev1.WakeTenantRequest) (*nstancev1.WakeTenantResponse, error) {
	return pass(ctx, g, request, (*OperatorService).WakeTenant)
}

// GetTenantStatus is that of the term.
func (g *Gate) GetTenantStatus(ctx context.Context, request *nstancev1.GetTenantStatusRequest) (*nstancev1.GetTenantStatusResponse, error) {
	return pass(ctx, g, request, (*OperatorService).GetTenantStatus)
}

// WatchGroups is that of the term, and ends with it.
func (g *Gate) WatchGroups(request *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.GroupEvent]) error {
	return passStream(g, request, stream, (*OperatorService).WatchGroups)
}

// WatchInstances is that of the term, and ends with it.
func (g *Gate) WatchInstances(request *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.InstanceEvent]) error {
	return passStream(g, request, stream, (*OperatorService).WatchInstances)
}

// WatchErrors is that of the term, and ends with it.
func (g *Gate) WatchErrors(request *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.ErrorEvent]) error {
	return passStream(g, request, stream, (*OperatorService).WatchErrors)
}
