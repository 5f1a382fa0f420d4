// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
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
	// unimplemented is the wait before a server is asked again for a stream that it
	// does not know.
	unimplemented time.Duration
	// quiet is how long no event of an instance may have come for the snapshot of a
	// watch of instances to be over. Servers send it in one go right after the
	// opening and do not mark its end, so that only a pause tells; this one is much
	// longer than one between two events of a snapshot, and far shorter than a drain.
	quiet time.Duration
	// settleLast is when the snapshot is taken to be over although events come: on a
	// busy shard there may be no pause for hours.
	settleLast time.Duration
	// remember is how long the notice of an instance that is gone is kept at least;
	// it goes within another tenth of that.
	remember time.Duration
}

var defaultTiming = timing{
	connect:       2 * time.Second,
	poll:          30 * time.Second,
	call:          10 * time.Second,
	retryFirst:    500 * time.Millisecond,
	retryLast:     15 * time.Second,
	unimplemented: 5 * time.Minute,
	quiet:         2 * time.Second,
	settleLast:    10 * time.Second,
	remember:      10 * time.Minute,
}

// pollJitter keeps the polls of shards that were connected together apart.
const pollJitter = 0.1

// Serve keeps the cache of one shard fresh until ctx ends, and returns when
// nothing of it runs any more. There must be one Serve per shard at a time. The
// logger of ctx is expected to name the shard.
//
// The watch of groups brings changes at once; a list after each opening of it
// and about every 30 s brings what it missed. While the shard does not answer,
// its groups stay and only Reachable is false. When Serve ends, they stay as
// well, unless the cause is shard.ErrRemoved: then the shard is dropped. A watch
// of errors beside it is for OnError alone; no other method or handler knows
// whether it is open.
func (g *Groups) Serve(ctx context.Context, shardID string, client nstancev1.OperatorServiceClient) {
	g.begin(shardID)
	r := &reader{groups: g, shard: shardID, client: client, opened: make(chan struct{}, 1)}
	var watching sync.WaitGroup
	watching.Go(func() { r.watchGroups(ctx) })
	watching.Go(func() { r.watchErrors(ctx) })
	r.poll(ctx)
	watching.Wait()
	g.end(shardID, errors.Is(context.Cause(ctx), shard.ErrRemoved))
}

// reader reads one shard during one Serve.
type reader struct {
	groups *Groups
	shard  string
	client nstancev1.OperatorServiceClient
	// opened holds a token when the watch of groups was opened and no list began
	// since.
	opened chan struct{}
}

// poll lists after each opening of the watch of groups, and then again and again.
func (r *reader) poll(ctx context.Context) {
	retry := r.groups.timing.backOff()
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

func (r *reader) update(change func(*cache) []string) {
	r.groups.update(r.shard, change)
}

// backOff grows from the first to the last wait and never gives up.
func (t timing) backOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(t.retryFirst),
		backoff.WithMaxInterval(t.retryLast),
		backoff.WithMaxElapsedTime(0),
	)
}

func jitter(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (1 - pollJitter + 2*pollJitter*rand.Float64()))
}
