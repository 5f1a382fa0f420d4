// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package connpool implements shard.Client and shard.Set: it keeps a gRPC connection to each
// configured shard, and follows changes of the endpoints.
package connpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// errAddressChanged is the cause of the end of a shard's context when its address has changed.
// The shard is then served at the new address.
var errAddressChanged = errors.New("address of the shard changed")

// Options configure a Pool.
type Options struct {
	// Credentials returns the credentials for a shard. They are used at each handshake, so
	// that a rotation of certificates needs no restart.
	Credentials func(shard string) credentials.TransportCredentials
	// Deadline returns the time at which calls must be over, because another operator may lead
	// then; the zero time if no calls are allowed. If it is nil, there is no deadline.
	Deadline func() time.Time
	// KubernetesCluster is the UID of the operator's Kubernetes cluster, which is sent with
	// every call and stream (docs/protocol.md#tenants) unless it is empty.
	KubernetesCluster string
	// Metrics counts the calls to shards; it may be nil.
	Metrics *Metrics
}

// ServeFunc serves one shard until ctx is done, and then returns. It runs in a
// goroutine of its own. ctx is done when the shard is removed, its address changes
// or Run's context is done; context.Cause(ctx) is shard.ErrRemoved in the first case
// only. The logger of ctx has the name of the shard.
type ServeFunc func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient)

// Pool has a connection to each configured shard while Run runs. Its methods are safe
// for concurrent use.
type Pool struct {
	credentials func(shard string) credentials.TransportCredentials
	deadline    func() time.Time
	// options are further options of each connection. Tests add a dialer.
	options []grpc.DialOption
	metrics *Metrics
	// changed contains a token while a change is waiting for Run's loop.
	changed chan struct{}

	mu          sync.Mutex
	endpoints   map[string]shard.Endpoint
	connections map[string]*connection
	handlers    []func(shard string)
}

// New returns a Pool without shards.
func New(options Options) *Pool {
	return &Pool{
		credentials: options.Credentials,
		deadline:    options.Deadline,
		options:     clusterOptions(options.KubernetesCluster),
		metrics:     options.Metrics,
		changed:     make(chan struct{}, 1),
		endpoints:   map[string]shard.Endpoint{},
		connections: map[string]*connection{},
	}
}

// Set replaces the endpoints, by shard id. It may be called at any time and does not wait for
// connections. It ignores registration addresses. Set calls the handlers for each shard that
// it adds or removes.
func (p *Pool) Set(endpoints map[string]shard.Endpoint) {
	p.mu.Lock()
	before := p.endpoints
	p.endpoints = maps.Clone(endpoints)
	handlers := slices.Clone(p.handlers)
	p.mu.Unlock()

	p.signal()
	for _, id := range difference(before, endpoints) {
		for _, handler := range handlers {
			handler(id)
		}
	}
}

// AddHandler registers handler. Set calls it with the id of each shard that it adds or
// removes. It must return quickly.
func (p *Pool) AddHandler(handler func(shard string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handlers = append(p.handlers, handler)
}

// Has reports whether the shard is configured, connected or not.
func (p *Pool) Has(shard string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.endpoints[shard]
	return ok
}

// Shards returns the ids of the configured shards, sorted.
func (p *Pool) Shards() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.endpoints))
}

// Run connects to the configured shards and calls serve for each, until ctx is done. It
// returns when every serve has returned and every connection is closed. Shards share no state,
// so that a shard that does not respond delays no other. Only one Run may run at a time.
func (p *Pool) Run(ctx context.Context, serve ServeFunc) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for _, c := range p.update(ctx) {
			running.Go(func() { p.run(c, serve) })
		}
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
	}
}

// update stops the connections of removed shards and of changed addresses, and returns new
// connections for the caller to run. The next connection to a shard is created only after the
// previous connection was closed, so that serve never runs twice for a shard.
func (p *Pool) update(ctx context.Context) []*connection {
	logger := klog.FromContext(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, c := range p.connections {
		endpoint, ok := p.endpoints[id]
		switch {
		case !ok:
			c.stop(shard.ErrRemoved)
		case endpoint.Operator != c.address:
			c.stop(errAddressChanged)
		}
	}
	var started []*connection
	for id, endpoint := range p.endpoints {
		if p.connections[id] != nil || ctx.Err() != nil {
			continue
		}
		c, err := newConnection(ctx, id, endpoint.Operator, dialOptions(endpoint.Operator, p.credentials(id), slices.Concat(p.options, p.metrics.options(id))...))
		if err != nil {
			logger.Error(err, "Cannot create a client for a shard", "shard", id, "address", endpoint.Operator)
			continue
		}
		p.connections[id] = c
		started = append(started, c)
	}
	return started
}

// run serves one shard until the context of its connection is done.
func (p *Pool) run(c *connection, serve ServeFunc) {
	logger := klog.FromContext(c.ctx)
	logger.Info("Serving shard")
	serve(c.ctx, c.shard, c.client)
	// Calls need the connection while the shard is configured, even if serve has
	// returned.
	<-c.ctx.Done()
	c.close()
	if errors.Is(context.Cause(c.ctx), shard.ErrRemoved) {
		p.metrics.forget(c.shard)
	}
	logger.Info("Stopped serving shard", "cause", context.Cause(c.ctx))

	p.mu.Lock()
	delete(p.connections, c.shard)
	p.mu.Unlock()
	p.signal()
}

// signal starts another iteration of Run's loop. Any number of changes needs only one token.
func (p *Pool) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// difference returns the ids that only one of the maps has, sorted.
func difference(before, after map[string]shard.Endpoint) []string {
	return sets.List(sets.KeySet(before).SymmetricDifference(sets.KeySet(after)))
}

// connection is a connection to a shard at an address. Its context is done when the connection
// is no longer needed, and has a logger with the name of the shard.
type connection struct {
	shard      string
	address    string
	ctx        context.Context
	stop       context.CancelCauseFunc
	clientConn *grpc.ClientConn
	client     nstancev1.OperatorServiceClient
}

// newConnection creates a connection. It does not dial before the first call.
func newConnection(ctx context.Context, shard, address string, options []grpc.DialOption) (*connection, error) {
	clientConn, err := grpc.NewClient(target(address), options...)
	if err != nil {
		return nil, fmt.Errorf("create a client for shard %q at %s: %w", shard, address, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	return &connection{
		shard:      shard,
		address:    address,
		ctx:        klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "shard", shard, "address", address)),
		stop:       stop,
		clientConn: clientConn,
		client:     nstancev1.NewOperatorServiceClient(clientConn),
	}, nil
}

// close closes the connection. It cancels calls that still use it.
func (c *connection) close() {
	// Close fails only when the connection is closed already.
	_ = c.clientConn.Close()
}
