// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package pool keeps one gRPC client per shard server, equal to the endpoints
// that are configured.
package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// errAddressChanged is the cause that ends the work for a shard whose endpoint
// has another address now. The work starts again with the new address.
var errAddressChanged = errors.New("address of the shard changed")

// Options are what a Pool needs. All fields are required.
type Options struct {
	// Credentials secure each connection. They are asked at each handshake, so
	// credentials that follow a rotation need no restart.
	Credentials credentials.TransportCredentials
}

// ServeFunc works with one shard until ctx ends, and then returns. It is called
// in a goroutine of its own. ctx ends when the shard is removed, its address
// changes or Run's context ends; context.Cause(ctx) is shard.ErrRemoved in the
// first case only. The logger of ctx names the shard.
type ServeFunc func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient)

// Pool holds a client for each configured shard while Run runs. Its methods are
// safe for concurrent use.
type Pool struct {
	options []grpc.DialOption
	// changed holds a token when there is work for Run's loop.
	changed chan struct{}

	mu        sync.Mutex
	endpoints map[string]shard.Endpoint
	members   map[string]*member
	handlers  []func(shard string)
}

// New makes a Pool without shards.
func New(options Options) *Pool {
	return &Pool{
		options:   dialOptions(options.Credentials),
		changed:   make(chan struct{}, 1),
		endpoints: map[string]shard.Endpoint{},
		members:   map[string]*member{},
	}
}

// Set makes endpoints, by shard id, the configured ones. It may be called at any
// time and does not wait for connections. Only the operator addresses count.
// When a shard was added or removed, the handlers have been called on return.
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

// AddHandler has handler called with the id of each shard that is added to or
// removed from the configured ones from now on. It is called by Set and must be
// quick.
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

// Shards are the ids of the configured shards, sorted.
func (p *Pool) Shards() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.endpoints))
}

// Run connects to the configured shards and has serve work with each, until ctx
// ends. It returns when every serve has returned and every connection is closed.
// Shards share nothing, so one that hangs delays no other. Run must not be
// called twice at the same time.
func (p *Pool) Run(ctx context.Context, serve ServeFunc) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for _, m := range p.update(ctx) {
			running.Go(func() { p.run(m, serve) })
		}
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
	}
}

// update stops the members that are no longer wanted as they are, and returns
// new ones that the caller is to run. A shard's successor is made only when its
// predecessor is gone, so that serve never runs twice for one shard.
func (p *Pool) update(ctx context.Context) []*member {
	logger := klog.FromContext(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, m := range p.members {
		endpoint, ok := p.endpoints[id]
		switch {
		case !ok:
			m.stop(shard.ErrRemoved)
		case endpoint.Operator != m.address:
			m.stop(errAddressChanged)
		}
	}
	var started []*member
	for id, endpoint := range p.endpoints {
		if p.members[id] != nil || ctx.Err() != nil {
			continue
		}
		m, err := newMember(ctx, id, endpoint.Operator, p.options)
		if err != nil {
			logger.Error(err, "Cannot make a client for a shard", "shard", id, "address", endpoint.Operator)
			continue
		}
		p.members[id] = m
		started = append(started, m)
	}
	return started
}

// run is the whole life of one member.
func (p *Pool) run(m *member, serve ServeFunc) {
	logger := klog.FromContext(m.ctx)
	logger.Info("Serving shard")
	serve(m.ctx, m.shard, m.client)
	// Calls need the connection for as long as the shard is configured, even if
	// serve has no more use for it.
	<-m.ctx.Done()
	m.close()
	logger.Info("Stopped serving shard", "cause", context.Cause(m.ctx))

	p.mu.Lock()
	delete(p.members, m.shard)
	p.mu.Unlock()
	p.signal()
}

// signal has Run's loop look again. One token stands for any number of changes.
func (p *Pool) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// difference is the sorted ids that only one of the two sets has.
func difference(before, after map[string]shard.Endpoint) []string {
	var ids []string
	for id := range before {
		if _, ok := after[id]; !ok {
			ids = append(ids, id)
		}
	}
	for id := range after {
		if _, ok := before[id]; !ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
