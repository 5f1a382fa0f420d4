// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// ReceiveKeyRequests sends nothing until the term is over: no files need keys yet.
func (s *AgentService) ReceiveKeyRequests(stream grpc.ServerStreamingServer[nstancev1.KeyGenerationRequest]) error {
	return s.wait(stream.Context())
}

// SubmitPublicKeys ignores the keys: no files need any yet.
func (s *AgentService) SubmitPublicKeys(ctx context.Context, request *nstancev1.PublicKeysRequest) (*emptypb.Empty, error) {
	if err := checkInstanceID(ctx, request.GetInstanceId()); err != nil {
		return nil, err
	}
	if _, err := s.admit(ctx); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// ReceiveFiles sends nothing until the term is over: no files are pushed yet.
func (s *AgentService) ReceiveFiles(stream grpc.ServerStreamingServer[nstancev1.FileTransfer]) error {
	return s.wait(stream.Context())
}

func (s *AgentService) wait(ctx context.Context) error {
	if _, err := s.admit(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}
