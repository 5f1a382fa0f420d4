// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// stream is one of the streams that a server is watched by.
type stream[Event any] struct {
	// open is the client's method.
	open func(context.Context, *emptypb.Empty, ...grpc.CallOption) (grpc.ServerStreamingClient[Event], error)
	// opened is called each time the stream was opened.
	opened func()
	// received is called for each event, in the order of their arrival.
	received func(*Event)
	// lost is called with the reason each time the stream could not be opened or
	// has ended. It returns how long to wait at least before the next time.
	lost func(error) time.Duration
}

// keepOpen opens the stream whenever it is not open, until ctx ends.
func (s *stream[Event]) keepOpen(ctx context.Context, timing timing) {
	retry := timing.backOff()
	for {
		lasted, err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		atLeast := s.lost(err)
		// A server that opens streams only to end them at once gets no more rest by
		// having sent something, hence the time.
		if lasted > timing.retryLast {
			retry.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(atLeast, retry.NextBackOff())):
		}
	}
}

// follow opens the stream and hands on its events until it fails. It returns how
// long the stream was open, and why it ended.
func (s *stream[Event]) follow(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Waiting for the connection here means that the end of an outage is noticed
	// as soon as gRPC, with its own backoff, has a connection.
	events, err := s.open(ctx, &emptypb.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return 0, err
	}
	start := time.Now()
	s.opened()
	for {
		event, err := events.Recv()
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Unavailable, "the server ended the watch")
		}
		if err != nil {
			return time.Since(start), err
		}
		s.received(event)
	}
}
