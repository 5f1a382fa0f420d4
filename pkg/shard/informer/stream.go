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

// stream is a watch of a server.
type stream[Event any] struct {
	// open is the method of the client.
	open func(context.Context, *emptypb.Empty, ...grpc.CallOption) (grpc.ServerStreamingClient[Event], error)
	// opened is called after each opening of the stream.
	opened func()
	// received is called for each event, in the order in which they are received.
	received func(*Event)
	// lost is called with the error each time the stream could not be opened or was
	// closed. It returns the minimum delay before the next opening.
	lost func(error) time.Duration
}

// keepOpen opens the stream, and opens it again whenever it was closed, until ctx is
// done.
func (s *stream[Event]) keepOpen(ctx context.Context, timing timing) {
	retry := timing.newBackoff()
	for {
		duration, err := s.receive(ctx)
		if ctx.Err() != nil {
			return
		}
		minDelay := s.lost(err)
		// Only a stream that stayed open for some time resets the backoff: a server
		// may close each stream right after the first event.
		if duration > timing.retryMax {
			retry.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(minDelay, retry.NextBackOff())):
		}
	}
}

// receive opens the stream and receives its events until it is closed. It returns how
// long the stream was open, and the error.
func (s *stream[Event]) receive(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// WaitForReady detects the recovery of a server as soon as gRPC, with its own
	// backoff, has a connection.
	events, err := s.open(ctx, &emptypb.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return 0, err
	}
	start := time.Now()
	s.opened()
	for {
		event, err := events.Recv()
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Unavailable, "the server closed the watch")
		}
		if err != nil {
			return time.Since(start), err
		}
		s.received(event)
	}
}
