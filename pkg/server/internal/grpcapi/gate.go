// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/pki"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Gate is the OperatorService of a process: it forwards calls to the service of
// the current term, and rejects them with Unavailable between terms. The
// code shows a client of a standby that another server may answer.
type Gate struct {
	// With this type a missing method is a compile error, not Unimplemented.
	nstancev1.UnsafeOperatorServiceServer
	termGate[*OperatorService]

	// Issuer renews the certificates of clients.
	Issuer Issuer
	// Authority has the authorities that clients trust.
	Authority *pki.Authority
}

// termGate forwards calls to the service of the current term.
type termGate[S termService] struct {
	// Blocked returns why this server, which leads, cannot serve until an administrator acts.
	// It returns nil if no reason is known. It is optional.
	Blocked func() error

	// leading reports whether this server leads now: a term is over a moment after
	// the leadership.
	leading  func() bool
	whoLeads func() string

	mu sync.Mutex
	// open is the service of the current term, or nil.
	open *openService[S]
}

// termService is a service for one term.
type termService interface {
	// closeStreams closes all streams, present and future, with Unavailable.
	closeStreams()
}

// openService is a service for one term of leadership.
type openService[S termService] struct {
	service S
	// ctx is done when the term is over.
	ctx context.Context
	// calls counts the calls in flight, without streams: a stream may wait for
	// its client for ever, and changes nothing.
	calls sync.WaitGroup
}

var _ nstancev1.OperatorServiceServer = (*Gate)(nil)

// NewGate returns a Gate that is shut and has no Issuer. It rejects calls also
// during a term when leading returns false. whoLeads returns the reason for the
// client.
func NewGate(leading func() bool, whoLeads func() string) *Gate {
	return &Gate{termGate: termGate[*OperatorService]{leading: leading, whoLeads: whoLeads}}
}

// Open forwards calls to service until shut is called. Shut rejects new calls,
// closes the streams of service for good, cancels its other calls, and returns
// when these have returned. The gate must be shut before it is opened again.
func (g *termGate[S]) Open(service S) (shut func()) {
	ctx, cancel := context.WithCancel(context.Background())
	opened := &openService[S]{service: service, ctx: ctx}
	g.set(opened)
	return func() {
		g.set(nil)
		service.closeStreams()
		cancel()
		opened.calls.Wait()
	}
}

func (g *termGate[S]) set(s *openService[S]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = s
}

// enter returns the service of the current term for a call. The caller calls leave when the call
// has returned.
func (g *termGate[S]) enter() (current *openService[S], leave func(), err error) {
	g.mu.Lock()
	if g.leading() {
		current = g.open
	}
	if current != nil {
		current.calls.Add(1)
	}
	g.mu.Unlock()
	if current == nil {
		return nil, nil, g.notServing()
	}
	return current, current.calls.Done, nil
}

// notServing returns the error of a call without a term. Its reason says whether the state
// passes by itself.
func (g *termGate[S]) notServing() error {
	if g.Blocked != nil {
		if err := g.Blocked(); err != nil {
			return withReason(codes.Unavailable, "this server cannot serve: "+err.Error(), nstancev1.ReasonNotServing, nil).Err()
		}
	}
	return status.Error(codes.Unavailable, "this server does not lead: "+g.whoLeads())
}

// closeStreams closes all streams, present and future, with Unavailable.
func (s *OperatorService) closeStreams() {
	s.Statuses.Close()
	s.Errors.Close()
	s.InstanceEvents.Close()
}

// untilClosed returns a copy of ctx that is also done when the term is over.
func (s *openService[S]) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// forward forwards a unary call. Its context is also done when the term is over.
func forward[S termService, Request, Response any](ctx context.Context, g *termGate[S], request *Request,
	method func(S, context.Context, *Request) (*Response, error),
) (*Response, error) {
	current, leave, err := g.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := current.untilClosed(ctx)
	defer cancel()
	return method(current.service, ctx, request)
}

// forwardStream forwards a streaming call.
func forwardStream[Event any](g *Gate, request *emptypb.Empty, stream grpc.ServerStreamingServer[Event],
	method func(*OperatorService, *emptypb.Empty, grpc.ServerStreamingServer[Event]) error,
) error {
	current, leave, err := g.enter()
	if err != nil {
		return err
	}
	leave()
	return method(current.service, request, stream)
}

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

// AgentGate is the AgentService of a process, as Gate is its OperatorService. Its streams
// are closed with Unavailable when the term is over.
type AgentGate struct {
	// With this type a missing method is a compile error, not Unimplemented.
	nstancev1.UnsafeAgentServiceServer
	termGate[*AgentService]
}

var _ nstancev1.AgentServiceServer = (*AgentGate)(nil)

// NewAgentGate returns an AgentGate that is shut. The parameters are as in NewGate.
func NewAgentGate(leading func() bool, whoLeads func() string) *AgentGate {
	return &AgentGate{termGate: termGate[*AgentService]{leading: leading, whoLeads: whoLeads}}
}

// SubmitPublicKeys forwards the call to the current term.
func (g *AgentGate) SubmitPublicKeys(ctx context.Context, request *nstancev1.PublicKeysRequest) (*emptypb.Empty, error) {
	return forward(ctx, &g.termGate, request, (*AgentService).SubmitPublicKeys)
}

// RenewCertificate forwards the call to the current term.
func (g *AgentGate) RenewCertificate(ctx context.Context, request *nstancev1.RenewCertificateRequest) (*nstancev1.RenewCertificateResponse, error) {
	return forward(ctx, &g.termGate, request, (*AgentService).RenewCertificate)
}

// ReceiveKeyRequests forwards the call to the current term.
func (g *AgentGate) ReceiveKeyRequests(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.KeyGenerationRequest]) error {
	return g.forwardStream(stream, func(s *AgentService, inTerm grpc.ServerStream) error {
		return s.ReceiveKeyRequests(&grpc.GenericServerStream[emptypb.Empty, nstancev1.KeyGenerationRequest]{ServerStream: inTerm})
	})
}

// SubmitHealthReport forwards the call to the current term.
func (g *AgentGate) SubmitHealthReport(stream grpc.ClientStreamingServer[nstancev1.HealthReportRequest, emptypb.Empty]) error {
	return g.forwardStream(stream, func(s *AgentService, inTerm grpc.ServerStream) error {
		return s.SubmitHealthReport(&grpc.GenericServerStream[nstancev1.HealthReportRequest, emptypb.Empty]{ServerStream: inTerm})
	})
}

// ReceiveFiles forwards the call to the current term.
func (g *AgentGate) ReceiveFiles(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.FileTransfer]) error {
	return g.forwardStream(stream, func(s *AgentService, inTerm grpc.ServerStream) error {
		return s.ReceiveFiles(&grpc.GenericServerStream[emptypb.Empty, nstancev1.FileTransfer]{ServerStream: inTerm})
	})
}

// forwardStream calls method with a stream whose context is also done when the term is
// over.
func (g *AgentGate) forwardStream(stream grpc.ServerStream, method func(*AgentService, grpc.ServerStream) error) error {
	current, leave, err := g.enter()
	if err != nil {
		return err
	}
	leave()
	ctx, cancel := current.untilClosed(stream.Context())
	defer cancel()
	err = method(current.service, &serverStream{ServerStream: stream, ctx: ctx})
	if current.ctx.Err() != nil && stream.Context().Err() == nil {
		return g.notServing()
	}
	return err
}
