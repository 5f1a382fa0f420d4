// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/api"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// pingAfter and pingTimeout find a client that is gone without a word: its
	// streams end after 30 s at most (wire contract).
	pingAfter   = 20 * time.Second
	pingTimeout = 10 * time.Second
	// pingAtMost is how often a client may ping us, with or without a call.
	pingAtMost = 5 * time.Second
	// stopTimeout is how long calls under way may take when the server stops.
	stopTimeout = 5 * time.Second
	// connectTimeout is how long a client may take for its handshake. A server
	// that stops waits for it, also when no calls are waited for.
	connectTimeout = 5 * time.Second
)

// newOperatorServer returns the gRPC server of the operators' listener.
func (s *Server) newOperatorServer(logger klog.Logger, registry prometheus.Registerer, service *api.OperatorService) (*grpc.Server, error) {
	creds, err := loadCredentials(s.Config.Shard.TLS)
	if err != nil {
		return nil, err
	}
	countUnary, countStream := api.Count(registry)
	authorizeUnary, authorizeStream := api.Authorize(logger, pki.RoleOperator)
	options := slices.Concat(s.GRPCOptions, []grpc.ServerOption{
		grpc.Creds(creds),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(countUnary, authorizeUnary),
		grpc.ChainStreamInterceptor(countStream, authorizeStream),
	})
	server := grpc.NewServer(options...)
	nstancev1.RegisterOperatorServiceServer(server, service)
	return server, nil
}

// loadCredentials reads the three PEM files.
func loadCredentials(files config.TLS) (credentials.TransportCredentials, error) {
	ca, caErr := os.ReadFile(files.CA)
	cert, certErr := os.ReadFile(files.Cert)
	key, keyErr := os.ReadFile(files.Key)
	if err := errors.Join(caErr, certErr, keyErr); err != nil {
		return nil, fmt.Errorf("reading the TLS files (shard.tls): %w", err)
	}
	tlsConfig, err := pki.ServerConfig(ca, cert, key)
	if err != nil {
		return nil, fmt.Errorf("using the TLS files (shard.tls): %w", err)
	}
	return credentials.NewTLS(tlsConfig), nil
}

// serveGRPC serves until ctx ends. Then it calls stopping, which has to end the
// streams, lets calls under way finish, and cuts off what does not.
func serveGRPC(ctx context.Context, server *grpc.Server, listener net.Listener, stopping func()) error {
	var stopper sync.WaitGroup
	defer stopper.Wait()
	serving, stopped := context.WithCancel(ctx)
	defer stopped()
	stopper.Go(func() {
		<-serving.Done()
		stopping()
		cutOff := time.AfterFunc(stopTimeout, server.Stop)
		defer cutOff.Stop()
		server.GracefulStop()
	})
	// It is stopped already when ctx ended this early.
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving operators at %s: %w", listener.Addr(), err)
	}
	return nil
}
