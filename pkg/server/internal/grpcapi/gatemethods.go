// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// GetConfigStatus forwards the call to the current term.
func (g *Gate) GetConfigStatus(ctx context.Context, request *emptypb.Empty) (*nstancev1.ConfigStatusResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).GetConfigStatus)
}

// RefreshConfig forwards the call to the current term.
func (g *Gate) RefreshConfig(ctx context.Context, request *emptypb.Empty) (*nstancev1.RefreshConfigResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).RefreshConfig)
}

// ListGroups forwards the call to the current term.
func (g *Gate) ListGroups(ctx context.Context, request *emptypb.Empty) (*nstancev1.ListGroupsResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).ListGroups)
}

// UpsertGroup forwards the call to the current term.
func (g *Gate) UpsertGroup(ctx context.Context, request *nstancev1.UpsertGroupRequest) (*nstancev1.GroupStatus, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).UpsertGroup)
}

// DeleteGroup forwards the call to the current term.
func (g *Gate) DeleteGroup(ctx context.Context, request *nstancev1.DeleteGroupRequest) (*emptypb.Empty, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).DeleteGroup)
}

// CreateInstance forwards the call to the current term.
func (g *Gate) CreateInstance(ctx context.Context, request *nstancev1.CreateInstanceRequest) (*nstancev1.CreateInstanceResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).CreateInstance)
}

// DeleteInstance forwards the call to the current term.
func (g *Gate) DeleteInstance(ctx context.Context, request *nstancev1.DeleteInstanceRequest) (*nstancev1.DeleteInstanceResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).DeleteInstance)
}

// GetInstanceStatus forwards the call to the current term.
func (g *Gate) GetInstanceStatus(ctx context.Context, request *nstancev1.GetInstanceStatusRequest) (*nstancev1.InstanceStatusResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).GetInstanceStatus)
}

// AcknowledgeDrained forwards the call to the current term.
func (g *Gate) AcknowledgeDrained(ctx context.Context, request *nstancev1.DrainAckRequest) (*emptypb.Empty, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).AcknowledgeDrained)
}

// SleepTenant forwards the call to the current term.
func (g *Gate) SleepTenant(ctx context.Context, request *nstancev1.SleepTenantRequest) (*nstancev1.SleepTenantResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).SleepTenant)
}

// WakeTenant forwards the call to the current term.
func (g *Gate) WakeTenant(ctx context.Context, request *nstancev1.WakeTenantRequest) (*nstancev1.WakeTenantResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).WakeTenant)
}

// GetTenantStatus forwards the call to the current term.
func (g *Gate) GetTenantStatus(ctx context.Context, request *nstancev1.GetTenantStatusRequest) (*nstancev1.GetTenantStatusResponse, error) {
	return forward(ctx, &g.termGate, request, (*OperatorService).GetTenantStatus)
}

// WatchGroups forwards the call to the current term. The stream is closed when the term is over.
func (g *Gate) WatchGroups(request *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.GroupEvent]) error {
	return forwardStream(g, request, stream, (*OperatorService).WatchGroups)
}

// WatchInstances forwards the call to the current term. The stream is closed when the term is over.
func (g *Gate) WatchInstances(request *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.InstanceEvent]) error {
	return forwardStream(g, request, stream, (*OperatorService).WatchInstances)
}

// WatchErrors forwards the call to the current term. The stream is closed when the term is over.
func (g *Gate) WatchErrors(request *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.ErrorEvent]) error {
	return forwardStream(g, request, stream, (*OperatorService).WatchErrors)
}
