// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Serve keeps the cache of one shard fresh until ctx ends, and returns when
// nothing of it runs any more. There must be one Serve per shard at a time; that
// of Groups is another's affair, which may run beside it. The logger of ctx is
// expected to name the shard.
//
// When Serve ends, the notices stay, unless the cause is shard.ErrRemoved: then
// they are dropped, and the handlers are told of each.
func (i *Instances) Serve(ctx context.Context, shardID string, client nstancev1.OperatorServiceClient) {
	i.begin(shardID)
	r := &noticeReader{instances: i, shard: shardID, client: client, settling: time.NewTimer(i.timing.quiet)}
	defer r.settling.Stop()
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(ctx) })
	r.tend(ctx)
	watching.Wait()
	i.end(shardID, errors.Is(context.Cause(ctx), shard.ErrRemoved))
}

// noticeReader reads one shard during one Serve.
type noticeReader struct {
	instances *Instances
	shard     string
	client    nstancev1.OperatorServiceClient
	// settling fires when it may be time to settle.
	settling *time.Timer
}

// watch keeps a watch of instances open, and puts its events into the cache.
func (r *noticeReader) watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	watch := stream[nstancev1.InstanceEvent]{
		open: r.client.WatchInstances,
		opened: func() {
			r.update(func(n *notices) []string {
				n.watchOpened(r.instances.next(), time.Now())
				return nil
			})
			r.settling.Reset(r.instances.timing.quiet)
		},
		received: func(event *nstancev1.InstanceEvent) { r.apply(ctx, wire.Notice(event)) },
		lost: func(err error) time.Duration {
			logger.Info("Lost the watch of instances", "err", err)
			r.update(func(n *notices) []string {
				n.watchLost()
				return nil
			})
			if status.Code(err) == codes.Unimplemented {
				return r.instances.timing.unimplemented
			}
			return 0
		},
	}
	watch.keepOpen(ctx, r.instances.timing)
}

// apply puts one event into the cache.
func (r *noticeReader) apply(ctx context.Context, news shard.Notice) {
	switch {
	case news.InstanceID == "":
		klog.FromContext(ctx).Info("Ignored an event of no instance", "state", news.State, "group", news.Group)
		return
	case news.State != shard.Draining && news.State != shard.Deleting && news.State != shard.Deleted:
		klog.FromContext(ctx).Info("Ignored an instance event of unknown state", "state", news.State, "instance", news.InstanceID)
		return
	}
	r.update(func(n *notices) []string { return n.put(news, r.instances.next(), time.Now()) })
}

// tend settles the watch when its snapshot is over, and forgets what is long
// over. It never keeps the watch waiting.
func (r *noticeReader) tend(ctx context.Context) {
	timing := r.instances.timing
	forget := time.NewTicker(timing.remember / 10)
	defer forget.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.settling.C:
			r.settle(ctx)
		case <-forget.C:
			r.update(func(n *notices) []string { return n.forget(time.Now().Add(-timing.remember)) })
		}
	}
}

// settle settles the watch if it is time to, or looks again later. A server that
// is silent because nothing drains answers when it is asked something; one that
// hangs, or a connection whose packets vanish, does not, and must not look like
// the withdrawal of all drains.
func (r *noticeReader) settle(ctx context.Context) {
	opening, wait := r.due()
	if opening == 0 {
		return
	}
	if wait > 0 {
		r.settling.Reset(wait)
		return
	}
	if !r.answers(ctx) {
		r.settling.Reset(r.instances.timing.quiet)
		return
	}
	var withdrawn []string
	r.update(func(n *notices) []string {
		// The snapshot may have gone on meanwhile, or begun anew.
		if n.open && n.opening == opening && !time.Now().Before(n.settlesAt(r.instances.timing)) {
			withdrawn = n.settle()
		}
		return withdrawn
	})
	if len(withdrawn) > 0 {
		klog.FromContext(ctx).Info("Drains are no longer announced", "instances", withdrawn)
	}
	if again, wait := r.due(); again != 0 {
		r.settling.Reset(wait)
	}
}

// due is the opening that is to settle, 0 for none, and the time until then.
func (r *noticeReader) due() (opening int64, wait time.Duration) {
	r.instances.mu.RLock()
	defer r.instances.mu.RUnlock()
	n := r.instances.caches[r.shard]
	if !n.open || n.settled {
		return 0, 0
	}
	return n.opening, time.Until(n.settlesAt(r.instances.timing))
}

// answers asks the server for next to nothing, and reports whether an answer
// came, be it a refusal.
func (r *noticeReader) answers(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, r.instances.timing.call)
	defer cancel()
	_, err := r.client.GetConfigStatus(limited, &emptypb.Empty{})
	return ctx.Err() == nil && !shard.IsUnreachable(err)
}

func (r *noticeReader) update(change func(*notices) []string) {
	r.instances.update(r.shard, change)
}
