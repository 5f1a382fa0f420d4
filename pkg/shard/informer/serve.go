// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// timing is how often and how long. Tests shorten it.
type timing struct {
	// connect is how long the watch may take to open before a list is tried all
	// the same, for the sake of its error.
	connect time.Duration
	// poll is the time between lists, give or take pollJitter of it. The
	// connections' keepalive relies on it, and with call it bounds how long a shard
	// that is silent seems reachable: 43 s.
	poll time.Duration
	// call is the deadline of a list.
	call time.Duration
	// retryFirst and retryLast bound the wait before what failed is tried again.
	retryFirst, retryLast time.Duration
}

var defaultTiming = timing{
	connect:    2 * time.Second,
	poll:       30 * time.Second,
	call:       10 * time.Second,
	retryFirst: 500 * time.Millisecond,
	retryLast:  15 * time.Second,
}

// pollJitter keeps the polls of shards that were connected together apart.
const pollJitter = 0.1

// Serve keeps the cache of one shard fresh until ctx ends, and returns when
// nothing of it runs any more. There must be one Serve per shard at a time. The
// logger of ctx is expected to name the shard.
//
// The watch brings changes at once; a list after each opening of the watch and
// about every 30 s brings what the watch missed. While the shard does not
// answer, its groups stay and only Reachable is false. When Serve ends, they
// stay as well, unless the cause is shard.ErrRemoved: then the shard is dropped.
func (g *Groups) Serve(ctx context.Context, shardID string, client nstancev1.OperatorServiceClient) {
	g.begin(shardID)
	r := &reader{groups: g, shard: shardID, client: client, opened: make(chan struct{}, 1)}
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(ctx) })
	r.poll(ctx)
	watching.Wait()
	g.end(shardID, errors.Is(context.Cause(ctx), shard.ErrRemoved))
}

// begin makes the shard's cache, or takes over the one of an earlier Serve.
func (g *Groups) begin(shardID string) {
	g.mu.Lock()
	if _, ok := g.shards[shardID]; !ok {
		g.shards[shardID] = newCache()
	}
	g.mu.Unlock()
	g.restart(shardID)
}

// end leaves the shard without a connection, or drops it.
func (g *Groups) end(shardID string, removed bool) {
	if !removed {
		g.restart(shardID)
		return
	}
	g.mu.Lock()
	delete(g.shards, shardID)
	handlers := g.handlers
	g.mu.Unlock()
	notify(handlers, shardID, nil, true)
}

func (g *Groups) restart(shardID string) {
	g.update(shardID, func(c *cache) []string {
		c.restart()
		return nil
	})
}

// reader reads one shard during one Serve.
type reader struct {
	groups *Groups
	shard  string
	client nstancev1.OperatorServiceClient
	// opened holds a token when the watch was opened and no list began since.
	opened chan struct{}
}

// poll lists after each opening of the watch, and then again and again.
func (r *reader) poll(ctx context.Context) {
	retry := r.backOff()
	next := time.NewTimer(r.groups.timing.connect)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.opened:
		case <-next.C:
		}
		if r.list(ctx) {
			retry.Reset()
			next.Reset(jitter(r.groups.timing.poll))
		} else {
			next.Reset(retry.NextBackOff())
		}
	}
}

// list makes the cache equal to the server's groups and reports whether it
// could. It does not wait for a connection that failed: its error says why.
func (r *reader) list(ctx context.Context) bool {
	r.update(func(c *cache) []string {
		c.listBegins()
		return nil
	})
	limited, cancel := context.WithTimeout(ctx, r.groups.timing.call)
	defer cancel()
	answer, err := r.client.ListGroups(limited, &emptypb.Empty{})
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot list groups", "err", err)
		err = fmt.Errorf("listing the groups of shard %q: %w", r.shard, err)
		r.update(func(c *cache) []string {
			c.listFailed(err)
			return nil
		})
		return false
	}
	groups := make([]shard.Group, 0, len(answer.GetGroups()))
	for _, group := range answer.GetGroups() {
		groups = append(groups, wire.Group(group))
	}
	r.update(func(c *cache) []string { return c.listEnds(groups) })
	return true
}

// watch keeps a watch open.
func (r *reader) watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	retry := r.backOff()
	for {
		lasted, err := r.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		logger.Info("Lost the watch of groups", "err", err)
		err = fmt.Errorf("watching the groups of shard %q: %w", r.shard, err)
		r.update(func(c *cache) []string {
			c.watchLost(err)
			return nil
		})
		// A server that opens watches only to end them at once gets no more rest by
		// having sent something, hence the time.
		if lasted > r.groups.timing.retryLast {
			retry.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// follow opens a watch and applies its events until it fails. It returns how
// long the watch was open, and why it ended.
func (r *reader) follow(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Waiting for the connection here means that the end of an outage is noticed
	// as soon as gRPC, with its own backoff, has a connection.
	stream, err := r.client.WatchGroups(ctx, &emptypb.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return 0, err
	}
	start := time.Now()
	r.update(func(c *cache) []string {
		c.watchOpened()
		return nil
	})
	select {
	case r.opened <- struct{}{}:
	default:
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Unavailable, "the server ended the watch")
		}
		if err != nil {
			return time.Since(start), err
		}
		r.apply(ctx, event)
	}
}

// apply puts one event into the cache. A deletion needs no more than the key.
func (r *reader) apply(ctx context.Context, event *nstancev1.GroupEvent) {
	group := wire.Group(event.GetGroup())
	switch event.GetType() {
	case nstancev1.GroupEvent_TYPE_UPSERT:
		r.update(func(c *cache) []string { return c.put(group) })
	case nstancev1.GroupEvent_TYPE_DELETE:
		r.update(func(c *cache) []string { return c.remove(group.Key) })
	default:
		klog.FromContext(ctx).Info("Ignored a group event of unknown type", "type", event.GetType(), "group", group.Key)
	}
}

func (r *reader) update(change func(*cache) []string) {
	r.groups.update(r.shard, change)
}

// backOff grows from the first to the last wait and never gives up.
func (r *reader) backOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(r.groups.timing.retryFirst),
		backoff.WithMaxInterval(r.groups.timing.retryLast),
		backoff.WithMaxElapsedTime(0),
	)
}

func jitter(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (1 - pollJitter + 2*pollJitter*rand.Float64()))
}
