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

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Serve updates the cache of one shard until ctx is done, and returns when all its
// goroutines have returned. There must be one Serve per shard at a time. It may run at
// the same time as Groups.Serve, with the same client: the events of a server that names
// no shard are ignored until Groups.Serve has verified it. The logger of ctx should have
// the name of the shard.
//
// The notices stay when Serve returns, unless the cause is shard.ErrRemoved: then they
// are dropped, and the handlers are called for each.
func (n *Notices) Serve(ctx context.Context, shardID string, client nstancev1.OperatorServiceClient) {
	n.start(shardID)
	r := &noticeReader{notices: n, shard: shardID, client: client, settleTimer: time.NewTimer(n.timing.settleQuiet)}
	defer r.settleTimer.Stop()
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(ctx) })
	r.settleAndExpire(ctx)
	watching.Wait()
	n.stop(shardID, errors.Is(context.Cause(ctx), shard.ErrRemoved))
}

// noticeReader reads the deletion notices of one shard during one Serve.
type noticeReader struct {
	notices *Notices
	shard   string
	client  nstancev1.OperatorServiceClient
	// settleTimer fires when the snapshot may be complete.
	settleTimer *time.Timer
}

// watch watches instances until ctx is done, and puts the events into the cache.
func (r *noticeReader) watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	watch := stream[nstancev1.InstanceEvent]{
		open:       r.client.WatchInstances,
		unverified: func() {},
		opened: func() {
			r.update(func(c *noticeCache) []string {
				c.watchOpened(r.notices.next(), time.Now())
				return nil
			})
			r.settleTimer.Reset(r.notices.timing.settleQuiet)
		},
		received: func(event *nstancev1.InstanceEvent) { r.apply(ctx, wire.Notice(event)) },
		lost: func(err error) time.Duration {
			logger.Info("Lost the watch of instances", "err", err)
			r.update(func(c *noticeCache) []string {
				c.watchLost()
				return nil
			})
			if status.Code(err) == codes.Unimplemented {
				return r.notices.timing.unimplementedDelay
			}
			return 0
		},
		reopenInterval: r.notices.timing.reopenInterval,
		overlap:        r.notices.timing.settleQuiet,
	}
	watch.keepOpen(ctx, r.notices.timing)
}

// apply puts one event into the cache.
func (r *noticeReader) apply(ctx context.Context, notice shard.DeletionNotice) {
	switch {
	case notice.InstanceID == "":
		klog.FromContext(ctx).Info("Ignored an event without an instance id", "state", notice.State, "group", notice.Group)
		return
	case notice.State != shard.Draining && notice.State != shard.Deleting && notice.State != shard.Deleted:
		klog.FromContext(ctx).Info("Ignored an instance event of unknown state", "state", notice.State, "instance", notice.InstanceID)
		return
	}
	r.update(func(c *noticeCache) []string { return c.put(notice, r.notices.next(), time.Now()) })
}

// settleAndExpire settles the watch when its snapshot is complete, and removes expired
// notices. It does not block the watch.
func (r *noticeReader) settleAndExpire(ctx context.Context) {
	timing := r.notices.timing
	expire := time.NewTicker(timing.retention / 10)
	defer expire.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.settleTimer.C:
			r.settle(ctx)
		case <-expire.C:
			r.update(func(c *noticeCache) []string { return c.expire(time.Now().Add(-timing.retention)) })
		}
	}
}

// settle settles the watch if its snapshot is complete, and resets the timer otherwise.
// First it checks that the server responds: a server without draining instances does,
// but a server that hangs or a connection whose packets are lost must not look like the
// withdrawal of all drains.
func (r *noticeReader) settle(ctx context.Context) {
	opening, wait := r.nextSettle()
	if opening == 0 {
		return
	}
	if wait > 0 {
		r.settleTimer.Reset(wait)
		return
	}
	if !r.responds(ctx) {
		r.settleTimer.Reset(r.notices.timing.settleQuiet)
		return
	}
	var withdrawn []string
	r.update(func(c *noticeCache) []string {
		// Since the check started, events may have been received or a new watch may
		// have been opened.
		if c.open && c.opening == opening && !time.Now().Before(c.settlesAt(r.notices.timing)) {
			withdrawn = c.settle()
		}
		return withdrawn
	})
	if len(withdrawn) > 0 {
		klog.FromContext(ctx).Info("Dropped drains that the shard no longer reports", "instances", withdrawn)
	}
	if opening, wait := r.nextSettle(); opening != 0 {
		r.settleTimer.Reset(wait)
	}
}

// nextSettle returns the opening that has not settled yet, 0 if there is none, and the
// time until its snapshot may be complete.
func (r *noticeReader) nextSettle() (opening int64, wait time.Duration) {
	r.notices.mu.RLock()
	defer r.notices.mu.RUnlock()
	c := r.notices.caches[r.shard]
	if !c.open || c.settled {
		return 0, 0
	}
	return c.opening, time.Until(c.settlesAt(r.notices.timing))
}

// responds calls a cheap method of the server, and reports whether the server replied,
// with an error or not.
func (r *noticeReader) responds(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, r.notices.timing.callTimeout)
	defer cancel()
	_, err := r.client.GetConfigStatus(limited, &emptypb.Empty{})
	return ctx.Err() == nil && !shard.IsUnreachable(err)
}

func (r *noticeReader) update(change func(*noticeCache) []string) {
	r.notices.update(r.shard, change)
}
