// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
)

// stream keeps a watch of a server open.
type stream[Event any] struct {
	// open is the client's method of the watch.
	open func(context.Context, *emptypb.Empty, ...grpc.CallOption) (grpc.ServerStreamingClient[Event], error)
	// unverified is called after each opening of the stream on a server that is not verified.
	// Its events are ignored until the server is verified; then the stream is opened again.
	unverified func()
	// opened is called after each opening of the stream on a verified server.
	opened func()
	// received is called for each event, in the order of arrival. After an error the stream is
	// closed, and lost is called with the error.
	received func(*Event) error
	// lost is called with the error each time the stream could not be opened or was
	// closed. It returns the minimum delay before the next opening.
	lost func(error) time.Duration
	// reopenInterval is the time after which the stream is opened again, before the present
	// stream is closed; 0 for never. It detects a server that has stopped sending events.
	reopenInterval time.Duration
	// overlap is how long both streams stay open, so that no event is lost: a stream is open
	// for the client before the server has received the request.
	overlap time.Duration
}

// keepOpen opens the stream, and opens it again whenever it is closed, until ctx is done.
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

// opening is an open stream.
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

// receiveUntilVerified ignores the events of a stream until its server is verified. It returns
// an error if the stream was closed before. It closes the stream.
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
	err := receiveAll(current, func(*Event) error { return nil })
	close(closed)
	closing.Wait()
	if current.server.Verified() {
		return nil
	}
	return err
}

// receiveUntilReopened receives the events of a stream until the next stream is open, and
// returns the next stream. It returns an error if the stream was closed before. It closes the
// stream.
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

// receiveAll calls received with the events of a stream until it is closed, or until received
// returns an error.
func receiveAll[Event any](current *opening[Event], received func(*Event) error) error {
	for {
		event, err := current.events.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the server closed the watch")
		}
		if err != nil {
			return err
		}
		if err := received(event); err != nil {
			return err
		}
	}
}

// timing contains the intervals and timeouts of the informers.
type timing struct {
	// connectTimeout is how long the first list waits for the watch to open. The error of that
	// list is then the reason why the shard is not reachable.
	connectTimeout time.Duration
	// listInterval is the time between lists, plus or minus listJitter. The
	// keepalive of connections depends on it. Together with callTimeout it limits how
	// long a shard that does not respond seems reachable: 43 s by default.
	listInterval time.Duration
	// callTimeout is the timeout of a list.
	callTimeout time.Duration
	// retryMin and retryMax bound the delay before a retry.
	retryMin, retryMax time.Duration
	// unimplementedDelay is the delay before a stream is opened again on a server
	// that does not implement it.
	unimplementedDelay time.Duration
	// reopenInterval is the time after which the watch of instances is opened again, plus or
	// minus listJitter: after another client has connected, a server may send nothing more to
	// the first client (docs/protocol.md#watches).
	reopenInterval time.Duration
	// settleQuiet is the time without instance events after which the snapshot of a
	// watch of instances is considered complete. Servers send the snapshot right
	// after the opening and do not mark its end. settleQuiet is much longer than the
	// time between two events of a snapshot, and much shorter than a drain.
	settleQuiet time.Duration
	// settleTimeout is when the snapshot counts as complete even if events keep arriving: a
	// busy shard may send events for hours without a pause.
	settleTimeout time.Duration
	// retention is the minimum time for which the notice of a deletion is cached. The
	// notice expires within another tenth of it.
	retention time.Duration
}

// DefaultProbeInterval is the default of Options.ProbeInterval; MinProbeInterval and
// MaxProbeInterval are its limits. With rarer lists the keepalive pings of connections would
// exceed the limit of servers (connpool).
const (
	DefaultProbeInterval = 30 * time.Second
	MinProbeInterval     = time.Second
	MaxProbeInterval     = DefaultProbeInterval
)

var defaultTiming = timing{
	connectTimeout:     2 * time.Second,
	listInterval:       DefaultProbeInterval,
	callTimeout:        10 * time.Second,
	retryMin:           500 * time.Millisecond,
	retryMax:           15 * time.Second,
	unimplementedDelay: 5 * time.Minute,
	reopenInterval:     10 * time.Minute,
	settleQuiet:        2 * time.Second,
	settleTimeout:      10 * time.Second,
	retention:          10 * time.Minute,
}

// listJitter spreads the lists and the openings of shards that were connected at the same
// time.
const listJitter = 0.1

// probing returns t with another list interval. A list that takes longer than the interval
// fails, and is retried within it.
func (t timing) probing(interval time.Duration) timing {
	t.listInterval = interval
	t.callTimeout = min(t.callTimeout, interval)
	t.retryMax = min(t.retryMax, interval)
	return t
}

// newBackoff returns a backoff from retryMin to retryMax without a time limit.
func (t timing) newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(t.retryMin),
		backoff.WithMaxInterval(t.retryMax),
		backoff.WithMaxElapsedTime(0),
	)
}

func jitter(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (1 - listJitter + 2*listJitter*rand.Float64()))
}
