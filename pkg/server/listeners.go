// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/connlimit"
	"nstance.dev/operator/pkg/base/httpserver"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/pki"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// pingAfter and pingTimeout detect a client that disappeared: its streams are closed
	// after 30 s at most (docs/protocol.md#watches). gRPC defines both in
	// https://pkg.go.dev/google.golang.org/grpc/keepalive#ServerParameters.
	pingAfter   = 20 * time.Second
	pingTimeout = 10 * time.Second
	// minPingInterval is how often a client may ping, with or without a call.
	minPingInterval = 5 * time.Second
	// connectTimeout is how long a client may take for its handshake. A server that stops
	// waits for handshakes (https://pkg.go.dev/google.golang.org/grpc#ConnectionTimeout).
	connectTimeout = 5 * time.Second
	// window is how many bytes a client may send before the server has read them.
	window = 1 << 20
)

// serve serves operators, agents, registrations, and peers that query the leader. It
// takes part in the election of the shard.
func (p *process) serve(ctx context.Context, g *errgroup.Group) error {
	if err := p.loadKeys(ctx); err != nil {
		return err
	}
	names := pki.Names{Hosts: hosts(p.shared.advertise)}
	if !p.server.Nameless {
		names.URI = identifier.ServerURI(p.shared.config.ClusterID, p.shared.shard)
	}
	certificate := pki.NewServing(p.shared.keys.Authority, names)
	p.shared.certificate.Store(certificate)
	operators, err := p.server.Listen(ctx, p.bind.OperatorAddr)
	if err != nil {
		return fmt.Errorf("listen for operators (shard.bind.operator_addr): %w", err)
	}
	registrations, err := p.server.Listen(ctx, p.bind.RegistrationAddr)
	if err != nil {
		return fmt.Errorf("listen for registrations (shard.bind.registration_addr): %w", err)
	}
	if p.shared.agentGate != nil {
		agents, err := p.server.Listen(ctx, p.bind.AgentAddr)
		if err != nil {
			return fmt.Errorf("listen for agents (shard.bind.agent_addr): %w", err)
		}
		agentServer := p.newAgentServer(klog.FromContext(ctx), certificate)
		agents = p.guard.Listener(agents, handshakeLimits(maxAgentConnections))
		g.Go(func() error { return p.serveGRPC(ctx, agentServer, agents) })
	}
	peers, err := p.server.Listen(ctx, p.bind.ElectionAddr)
	if err != nil {
		return fmt.Errorf("listen for peers (shard.bind.election_addr): %w", err)
	}
	operatorServer, registrationServer := p.newGRPCServers(klog.FromContext(ctx), certificate) //nolint:contextcheck // each call has its own context
	operators = p.guard.Listener(operators, handshakeLimits(maxOperatorConnections))
	registrations = connlimit.Total(connlimit.PerAddress(registrations, maxRegistrationsPerAddress), maxRegistrationConnections)
	g.Go(func() error { return p.serveGRPC(ctx, operatorServer, operators) })
	g.Go(func() error { return p.serveGRPC(ctx, registrationServer, registrations) })
	g.Go(func() error {
		p.guard.Run(ctx)
		return nil
	})
	g.Go(func() error {
		p.followAuthorities(ctx)
		return nil
	})
	g.Go(func() error { return servePeers(ctx, peers, certificate.Config(), p.shared.elector.Handler()) })
	return p.shared.elector.Run(ctx, p.lead)
}

// commonOptions returns the options of all gRPC servers.
func (p *process) commonOptions() []grpc.ServerOption {
	return slices.Concat(p.server.GRPCOptions, []grpc.ServerOption{
		grpc.ConnectionTimeout(connectTimeout),
		// Requests are small. To adapt its windows, a server sends a ping for each request.
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		// A new goroutine for each call would grow its stack each time
		// (https://pkg.go.dev/google.golang.org/grpc#NumStreamWorkers).
		grpc.NumStreamWorkers(uint32(runtime.NumCPU())),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(p.countUnary),
		grpc.ChainStreamInterceptor(p.countStream),
	})
}

// newGRPCServers returns the server for operators and the server for registrations.
func (p *process) newGRPCServers(logger klog.Logger, certificate *pki.Serving) (operators, registrations *grpc.Server) {
	authorizeUnary, authorizeStream := grpcapi.Authorize(logger, pki.RoleOperator)
	limitUnary, limitStream := grpcapi.LimitCalls(func() int { return p.shared.inForce.Load().MaxCallsPerSecond() })
	operators = grpc.NewServer(slices.Concat(p.commonOptions(), []grpc.ServerOption{
		grpc.Creds(p.guard.Credentials(credentials.NewTLS(certificate.MutualConfig()))),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.MaxConcurrentStreams(maxOperatorStreams),
		grpc.MaxRecvMsgSize(maxOperatorRequest),
		grpc.ChainUnaryInterceptor(authorizeUnary, grpcapi.NameRequest, p.guard.Unary, limitUnary),
		grpc.ChainStreamInterceptor(authorizeStream, p.guard.Stream, limitStream),
	})...)
	nstancev1.RegisterOperatorServiceServer(operators, p.shared.gate)
	registrations = grpc.NewServer(slices.Concat(p.commonOptions(), []grpc.ServerOption{
		// A client has no certificate before its registration.
		grpc.Creds(credentials.NewTLS(certificate.Config())),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingAfter, Timeout: pingTimeout,
			MaxConnectionIdle: maxRegistrationIdle, MaxConnectionAge: maxRegistrationAge, MaxConnectionAgeGrace: registrationGrace,
		}),
		grpc.MaxConcurrentStreams(maxRegistrationStreams),
		grpc.MaxRecvMsgSize(maxRegistrationRequest),
	})...)
	nstancev1.RegisterRegistrationServiceServer(registrations, &grpcapi.RegistrationService{
		Registrar: p.registrar, Authority: p.shared.keys.Authority, Agents: p.shared.agentGate, Logger: logger,
	})
	return operators, registrations
}

// newAgentServer returns the server for agents.
func (p *process) newAgentServer(logger klog.Logger, certificate *pki.Serving) *grpc.Server {
	authorizeUnary, authorizeStream := grpcapi.Authorize(logger, pki.RoleAgent)
	server := grpc.NewServer(slices.Concat(p.commonOptions(), []grpc.ServerOption{
		grpc.Creds(p.guard.Credentials(credentials.NewTLS(certificate.MutualConfig()))),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.MaxConcurrentStreams(maxAgentStreams),
		grpc.MaxRecvMsgSize(maxAgentRequest),
		grpc.ChainUnaryInterceptor(authorizeUnary, p.guard.Unary),
		grpc.ChainStreamInterceptor(authorizeStream, p.guard.Stream),
	})...)
	nstancev1.RegisterAgentServiceServer(server, p.shared.agentGate)
	return server
}

// serveGRPC serves until ctx is done. Then it waits for running calls until the
// shutdown timeout and cancels the others.
func (p *process) serveGRPC(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	var stopper sync.WaitGroup
	defer stopper.Wait()
	serving, stopped := context.WithCancel(ctx)
	defer stopped()
	stopper.Go(func() {
		<-serving.Done()
		forced := time.AfterFunc(p.shared.inForce.Load().Shard.ShutdownTimeout, server.Stop)
		defer forced.Stop()
		server.GracefulStop()
	})
	// The server has already stopped if ctx was done before Serve.
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve at %s: %w", listener.Addr(), err)
	}
	return nil
}

// servePeers serves queries for the leader until ctx is done.
func servePeers(ctx context.Context, listener net.Listener, config *tls.Config, handler http.Handler) error {
	if err := httpserver.Serve(ctx, listener, config, handler); err != nil {
		return fmt.Errorf("serve peers: %w", err)
	}
	return nil
}

// Limits of clients (docs/server-reference.md#limits).
const (
	// maxPendingHandshakes is the maximum number of connections to the port for operators, or to
	// the port for agents, whose handshake has not finished, and maxPendingPerAddress the maximum
	// for an address. Many agents may have one address, and connect again when another server
	// leads.
	maxPendingHandshakes = 1024
	maxPendingPerAddress = 256

	// maxOperatorConnections is the maximum number of connections of operators. Further
	// connections are closed. An operator has one connection for each of its processes that leads.
	maxOperatorConnections = 4096
	// maxOperatorStreams is the maximum number of calls in progress on one connection.
	// An operator has three watches and at most some hundred calls at a time.
	maxOperatorStreams = 1000
	// maxOperatorRequest is the maximum size of a request, in bytes.
	maxOperatorRequest = 4 << 20

	// maxAgentConnections is the maximum number of connections of agents, each of which has
	// one. Further connections are closed.
	maxAgentConnections = 16384
	// maxAgentStreams is the maximum number of calls in progress on one connection. An
	// agent has three streams and few calls.
	maxAgentStreams = 16
	// maxAgentRequest is the maximum size of a report or of public keys, in bytes.
	maxAgentRequest = 256 << 10

	// maxRegistrationConnections is the maximum number of connections of clients without a
	// certificate, and maxRegistrationsPerAddress the maximum for one address.
	maxRegistrationConnections = 256
	maxRegistrationsPerAddress = 32
	// maxRegistrationStreams is the maximum number of calls in progress on one connection.
	maxRegistrationStreams = 16
	// maxRegistrationRequest is the maximum size of a nonce with a key, in bytes.
	maxRegistrationRequest = 64 << 10
	// A registration takes one call: its connection is closed when it is idle for
	// maxRegistrationIdle, and in any case after maxRegistrationAge. Calls in progress
	// then have registrationGrace.
	maxRegistrationIdle = 30 * time.Second
	maxRegistrationAge  = 2 * time.Minute
	registrationGrace   = 30 * time.Second

	// maxHeaders is the maximum size of the metadata of a call, in bytes.
	maxHeaders = 16 << 10
)

func handshakeLimits(authenticated int) connlimit.Limits {
	return connlimit.Limits{Pending: maxPendingHandshakes, PendingPerAddress: maxPendingPerAddress, Authenticated: authenticated}
}

// withHost returns addresses with another host. Empty addresses stay empty. With a leader
// network the addresses at which others reach the leader keep their host: the listeners must
// accept connections to an address that the machine has at times.
func withHost(addresses config.Addresses, host string, leaderNetwork bool) config.Addresses {
	if host == "" {
		return addresses
	}
	replaced := []*string{&addresses.HealthAddr, &addresses.ElectionAddr}
	if !leaderNetwork {
		replaced = append(replaced, &addresses.RegistrationAddr, &addresses.OperatorAddr, &addresses.AgentAddr)
	}
	for _, address := range replaced {
		// The configuration has been validated.
		if _, port, err := net.SplitHostPort(*address); err == nil {
			*address = net.JoinHostPort(host, port)
		}
	}
	return addresses
}

// loopbackHost is advertised by a server on a machine without other addresses.
const loopbackHost = "127.0.0.1"

// advertised returns the addresses at which others reach the server. A host that neither the
// configuration nor the flags name is the first global unicast address of the machine, or the
// loopback address if list, which lists them, has none. Clients would not reach a server that does not know its address, so
// that is an error.
func (s *Server) advertised(shard *config.Shard, bind config.Addresses, list func() ([]net.Addr, error)) (config.Addresses, error) {
	advertise := shard.Advertised(bind, cmp.Or(s.Host, loopbackHost))
	if s.Host != "" || advertise == shard.Advertised(bind, "") {
		return advertise, nil
	}
	addresses, err := list()
	if err != nil {
		return config.Addresses{}, fmt.Errorf("list the addresses of the machine, the first of which clients need (name it in the configuration, or allow AF_NETLINK if a unit of systemd restricts address families): %w", err)
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return shard.Advertised(bind, network.IP.String()), nil
		}
	}
	return advertise, nil
}

// isLoopback reports whether a host is the machine itself.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// hosts returns the names that the server's certificate must have: the hosts of all
// addresses, and the loopback names for tools on the same machine.
func hosts(addresses config.Addresses) []string {
	var hosts []string
	for _, address := range []string{addresses.OperatorAddr, addresses.RegistrationAddr, addresses.ElectionAddr, addresses.AgentAddr} {
		if host, _, err := net.SplitHostPort(address); err == nil {
			hosts = append(hosts, host)
		}
	}
	hosts = append(hosts, "localhost", "127.0.0.1", "::1")
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
