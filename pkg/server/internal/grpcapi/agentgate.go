// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// AgentGate is the AgentService of a process, as Gate is its OperatorService. Its streams
// are closed with Unavailable when the term is over.
type AgentGate struct {
	// With this type a missing method is a compile error, not Unimplemented.
	nstancev1.UnsafeAgentServiceServer
	termGate[*AgentService]
}

var _ nstancev1.AgentServiceServer = (*AgentGate)(nil)

// NewAgentGate returns an AgentGate that is shut. The parameters are those of NewGate.
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
