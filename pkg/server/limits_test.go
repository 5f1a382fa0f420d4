// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestRegistrationConnections: one address may have 32 connections, and an idle one is
// closed.
func TestRegistrationConnections(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		call := func(client nstancev1.RegistrationServiceClient) error {
			_, err := client.RegisterOperator(t.Context(), &nstancev1.RegisterClientRequest{})
			return err
		}
		for range 32 {
			wantCode(t, "a call without a nonce", call(s.Registration()), codes.Unauthenticated)
		}
		further := s.Registration()
		wantCode(t, "a call on another connection", call(further), codes.Unavailable)
		<-time.After(time.Minute)
		wantCode(t, "a call after the others were idle", call(further), codes.Unauthenticated)
	})
}

func TestRegistrationRequestIsLimited(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		large := strings.Repeat("x", 64<<10)
		_, err := s.Registration().RegisterOperator(t.Context(), &nstancev1.RegisterClientRequest{RegistrationNonceJwt: large})
		wantCode(t, "a large nonce", err, codes.ResourceExhausted)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "large", large)
		_, err = s.Operator("default").ListGroups(ctx, &emptypb.Empty{})
		if err == nil {
			t.Error("large metadata was accepted")
		}
	})
}

// TestCallsOfOneConnection: a further call waits until another one has returned.
func TestCallsOfOneConnection(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		operator := s.Operator("default")
		list := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := operator.ListGroups(ctx, &emptypb.Empty{})
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 999 {
			_, err := operator.WatchErrors(t.Context(), &emptypb.Empty{})
			require.NoError(t, err)
		}
		require.NoError(t, list())
		_, err := operator.WatchErrors(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		wantCode(t, "a call while a thousand are in progress", list(), codes.DeadlineExceeded)
		cancel()
		require.NoError(t, list())
	})
}
