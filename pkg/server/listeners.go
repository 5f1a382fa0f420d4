// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/api"
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
	// connectTimeout is how long a client may take for its handshake. A server
	// that stops waits for it, also when no calls are waited for.
	connectTimeout = 5 * time.Second
)

// serve answers operators, those that are to become operators, and peers that
// ask who leads; and it stands for the election of the shard.
func (p *process) serve(ctx context.Context, g *errgroup.Group) error {
	if err := p.loadKeys(ctx); err != nil {
		return err
	}
	certificate := pki.NewServing(p.keys.Authority, hosts(p.advertise))
	operators, err := p.Listen(ctx, p.bind.OperatorAddr)
	if err != nil {
		return fmt.Errorf("listening for operators (shard.bind.operator_addr): %w", err)
	}
	registrations, err := p.Listen(ctx, p.bind.RegistrationAddr)
	if err != nil {
		return fmt.Errorf("listening for registrations (shard.bind.registration_addr): %w", err)
	}
	peers, err := p.Listen(ctx, p.bind.ElectionAddr)
	if err != nil {
		return fmt.Errorf("listening for peers (shard.bind.election_addr): %w", err)
	}
	operatorServer, registrationServer := p.newGRPCServers(klog.FromContext(ctx), certificate)
	g.Go(func() error { return p.serveGRPC(ctx, operatorServer, operators) })
	g.Go(func() error { return p.serveGRPC(ctx, registrationServer, registrations) })
	g.Go(func() error { return servePeers(ctx, peers, certificate.Config(), p.shard.Handler()) })
	return p.shard.Run(ctx, p.lead)
}

// newGRPCServers returns the server for operators and that for registrations.
func (p *process) newGRPCServers(logger klog.Logger, certificate *pki.Serving) (operators, registrations *grpc.Server) {
	countUnary, countStream := api.Count(p.registry)
	authorizeUnary, authorizeStream := api.Authorize(logger, pki.RoleOperator)
	common := slices.Concat(p.GRPCOptions, []grpc.ServerOption{
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(countUnary),
		grpc.ChainStreamInterceptor(countStream),
	})
	operators = grpc.NewServer(slices.Concat(common, []grpc.ServerOption{
		grpc.Creds(credentials.NewTLS(certificate.MutualConfig())),
		grpc.ChainUnaryInterceptor(authorizeUnary),
		grpc.ChainStreamInterceptor(authorizeStream),
	})...)
	nstancev1.RegisterOperatorServiceServer(operators, p.gate)
	registrations = grpc.NewServer(slices.Concat(common, []grpc.ServerOption{
		// Who comes to register has no certificate yet.
		grpc.Creds(credentials.NewTLS(certificate.Config())),
	})...)
	nstancev1.RegisterRegistrationServiceServer(registrations, &api.RegistrationService{Registrar: p.registrar, Logger: logger})
	return operators, registrations
}

// serveGRPC serves until ctx ends. Then it lets calls under way finish, and cuts
// off what does not.
func (p *process) serveGRPC(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	var stopper sync.WaitGroup
	defer stopper.Wait()
	serving, stopped := context.WithCancel(ctx)
	defer stopped()
	stopper.Go(func() {
		<-serving.Done()
		cutOff := time.AfterFunc(p.inForce.Load().Shard.ShutdownTimeout, server.Stop)
		defer cutOff.Stop()
		server.GracefulStop()
	})
	// It is stopped already when ctx ended this early.
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving at %s: %w", listener.Addr(), err)
	}
	return nil
}

// servePeers answers who leads, until ctx ends.
func servePeers(ctx context.Context, listener net.Listener, config *tls.Config, handler http.Handler) error {
	server := &http.Server{Handler: handler, TLSConfig: config, ReadHeaderTimeout: connectTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving peers at %s: %w", listener.Addr(), err)
	}
	return nil
}
