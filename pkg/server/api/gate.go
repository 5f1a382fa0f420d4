// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Gate is the OperatorService of a process: it passes calls to the service of
// the term that there is, and refuses them with Unavailable while there is none.
// A client that finds a standby thereby knows that another server may answer.
type Gate struct {
	// Unlike the unimplemented one, it leaves no method out unseen.
	nstancev1.UnsafeOperatorServiceServer

	// Issuer renews the certificates of those who call.
	Issuer Issuer

	// leading tells whether this server leads at this moment: a term ends a moment
	// after the lead.
	leading  func() bool
	whoLeads func() string

	mu sync.Mutex
	// term is nil when there is none.
	term *term
}

// term is a service for as long as it may be called.
type term struct {
	service *OperatorService
	// ctx ends with the term.
	ctx context.Context
	// calls are those under way, without streams: a stream may wait for its
	// client for ever, and changes nothing.
	calls sync.WaitGroup
}

var _ nstancev1.OperatorServiceServer = (*Gate)(nil)

// NewGate returns a Gate that is shut and has no Issuer. It stays shut, also
// while there is a term, unless leading says yes. What whoLeads returns is the text with
// which it refuses calls.
func NewGate(leading func() bool, whoLeads func() string) *Gate {
	return &Gate{leading: leading, whoLeads: whoLeads}
}

// Open passes calls to service until shut is called. Shut refuses new calls, ends
// the streams of service, which cannot be opened again, and returns when none of
// its other calls is under way. The Gate must be shut before it is opened again.
func (g *Gate) Open(service *OperatorService) (shut func()) {
	ctx, cancel := context.WithCancel(context.Background())
	opened := &term{service: service, ctx: ctx}
	g.set(opened)
	return func() {
		g.set(nil)
		service.endStreams()
		cancel()
		opened.calls.Wait()
	}
}

func (g *Gate) set(t *term) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.term = t
}

// enter returns the term for a call, which calls leave when it is done.
func (g *Gate) enter() (current *term, leave func(), err error) {
	g.mu.Lock()
	if g.leading() {
		current = g.term
	}
	if current != nil {
		current.calls.Add(1)
	}
	g.mu.Unlock()
	if current == nil {
		return nil, nil, status.Error(codes.Unavailable, "this server does not lead: "+g.whoLeads())
	}
	return current, current.calls.Done, nil
}

// endStreams ends all streams, present and future, with Unavailable.
func (s *OperatorService) endStreams() {
	s.Board.Close()
	s.Errors.Close()
	s.InstanceEvents.Close()
}

// bound returns ctx, which ends with the term too.
func (t *term) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// pass makes a call that answers once. Its context ends with the term too.
func pass[Request, Response any](ctx context.Context, g *Gate, request *Request,
	method func(*OperatorService, context.Context, *Request) (*Response, error),
) (*Response, error) {
	current, leave, err := g.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := current.bound(ctx)
	defer cancel()
	return method(current.service, ctx, request)
}

// passStream makes a call that answers with a stream.
func passStream[Event any](g *Gate, request *emptypb.Empty, stream grpc.ServerStreamingServer[Event],
	method func(*OperatorService, *emptypb.Empty, grpc.ServerStreamingServer[Event]) error,
) error {
	current, leave, err := g.enter()
	if err != nil {
		return err
	}
	leave()
	return method(current.service, request, stream)
}
