// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// watchGroups watches groups until ctx is done, and puts the events into the cache.
func (r *groupReader) watchGroups(ctx context.Context) {
	logger := klog.FromContext(ctx)
	requestList := func() {
		select {
		case r.relist <- struct{}{}:
		default:
		}
	}
	watch := stream[nstancev1.GroupEvent]{
		open:       r.client.WatchGroups,
		unverified: requestList,
		opened: func() {
			r.update(func(c *groupCache) []string {
				c.link.opened(time.Now())
				c.watchOpened()
				return nil
			})
			requestList()
		},
		received: func(event *nstancev1.GroupEvent) { r.apply(ctx, event) },
		lost: func(err error) time.Duration {
			logger.Info("Lost the watch of groups", "err", err)
			err = fmt.Errorf("watch the groups of shard %q: %w", r.shard, err)
			r.update(func(c *groupCache) []string {
				c.watchLost(err)
				return nil
			})
			return 0
		},
	}
	watch.keepOpen(ctx, r.groups.timing)
}

// apply puts one event into the cache. The event of a deletion may contain nothing but
// the key and the tenant.
func (r *groupReader) apply(ctx context.Context, event *nstancev1.GroupEvent) {
	r.update(func(c *groupCache) []string {
		c.link.lastMessage = time.Now()
		return nil
	})
	group := wire.Group(event.GetGroup())
	switch event.GetType() {
	case nstancev1.GroupEvent_TYPE_UPSERT:
		r.update(func(c *groupCache) []string { return c.put(group) })
	case nstancev1.GroupEvent_TYPE_DELETE:
		r.update(func(c *groupCache) []string { return c.remove(group.Key) })
	default:
		klog.FromContext(ctx).Info("Ignored a group event of unknown type", "type", event.GetType(), "group", group.Key)
	}
}

// watchErrors watches errors until ctx is done, and calls the handlers. It does not
// affect the cache: a shard is reachable even if its server does not report errors.
func (r *groupReader) watchErrors(ctx context.Context) {
	logger := klog.FromContext(ctx)
	watch := stream[nstancev1.ErrorEvent]{
		open:       r.client.WatchErrors,
		unverified: func() {},
		opened:     func() {},
		received: func(event *nstancev1.ErrorEvent) {
			r.groups.report(r.shard, wire.ErrorEvent(event))
		},
		lost: func(err error) time.Duration {
			// The watch of groups logs the loss of a connection.
			logger.V(2).Info("Lost the watch of errors", "err", err)
			if status.Code(err) == codes.Unimplemented {
				return r.groups.timing.unimplementedDelay
			}
			return 0
		},
	}
	watch.keepOpen(ctx, r.groups.timing)
}
