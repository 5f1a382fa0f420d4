// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
)

// stream is a watch of a server.
type stream[Event any] struct {
	// open is the method of the client.
	open func(context.Context, *emptypb.Empty, ...grpc.CallOption) (grpc.ServerStreamingClient[Event], error)
	// unverified is called after each opening of the stream whose server is not verified.
	// Its events are ignored, and the stream is opened again when the server is verified.
	unverified func()
	// opened is called after each other opening of the stream.
	opened func()
	// received is called for each event, in the order in which they are received.
	received func(*Event)
	// lost is called with the error each time the stream could not be opened or was
	// closed. It returns the minimum delay before the next opening.
	lost func(error) time.Duration
	// reopenInterval is the time after which the stream is opened again, before the
	// present one is closed; 0 for never. A server that sends nothing any more is
	// detected in this way.
	reopenInterval time.Duration
	// overlap is how long both are open, so that the server sends each event to one of
	// them: a stream is open for the client before the server has received the request.
	overlap time.Duration
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
	current, err := s.openOnce(ctx, ctx)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for current != nil {
		if current.server.Verified() {
			s.opened()
			current, err = s.receiveUntilReopened(ctx, current)
			continue
		}
		s.unverified()
		if err = receiveUntilVerified(current); err != nil {
			break
		}
		current, err = s.openOnce(ctx, ctx)
	}
	return time.Since(start), err
}

// opening is a stream that is open.
type opening[Event any] struct {
	events grpc.ServerStreamingClient[Event]
	server *conninfo.Info
	close  context.CancelFunc
}

// openOnce opens the stream until ctx is done. It gives up when waiting is done.
func (s *stream[Event]) openOnce(ctx, waiting context.Context) (*opening[Event], error) {
	ctx, cancel := context.WithCancel(ctx)
	giveUp := context.AfterFunc(waiting, cancel)
	// WaitForReady detects the recovery of a server as soon as gRPC, with its own
	// backoff, has a connection.
	events, err := s.open(ctx, &emptypb.Empty{}, grpc.WaitForReady(true))
	if !giveUp() && err == nil {
		err = context.Cause(waiting)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	server := conninfo.OfStream(events) //nolint:contextcheck // the stream has ctx
	return &opening[Event]{events: events, server: server, close: cancel}, nil
}

// receiveUntilVerified ignores the events of a stream until its server is verified. It
// returns an error if the stream was closed before. The stream is closed when it returns.
func receiveUntilVerified[Event any](current *opening[Event]) error {
	var closing sync.WaitGroup
	closed := make(chan struct{})
	closing.Go(func() {
		select {
		case <-current.server.UntilVerified():
		case <-closed:
		}
		current.close()
	})
	err := receiveAll(current, func(*Event) {})
	close(closed)
	closing.Wait()
	if current.server.Verified() {
		return nil
	}
	return err
}

// receiveUntilReopened receives the events of a stream until it was opened another time,
// and returns the other one. It returns an error if the stream was closed before. The
// stream is closed when it returns.
func (s *stream[Event]) receiveUntilReopened(ctx context.Context, current *opening[Event]) (*opening[Event], error) {
	defer current.close()
	var reopening sync.WaitGroup
	var next *opening[Event]
	waiting, stop := context.WithCancel(ctx)
	reopening.Go(func() {
		next = s.reopen(ctx, waiting)
		if next == nil {
			return
		}
		select {
		case <-waiting.Done():
		case <-time.After(s.overlap):
		}
		current.close()
	})
	err := receiveAll(current, s.received)
	stop()
	reopening.Wait()
	if next != nil {
		return next, nil
	}
	return nil, err
}

// reopen opens the stream after the interval, unless waiting is done before.
func (s *stream[Event]) reopen(ctx, waiting context.Context) *opening[Event] {
	if s.reopenInterval == 0 {
		return nil
	}
	for {
		select {
		case <-waiting.Done():
			return nil
		case <-time.After(jitter(s.reopenInterval)):
		}
		opened, err := s.openOnce(ctx, waiting)
		if err == nil {
			return opened
		}
	}
}

// receiveAll calls received with the events of a stream until it is closed.
func receiveAll[Event any](current *opening[Event], received func(*Event)) error {
	for {
		event, err := current.events.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the server closed the watch")
		}
		if err != nil {
			return err
		}
		received(event)
	}
}
