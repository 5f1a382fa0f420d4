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

	"nstance.dev/operator/pkg/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// watchGroups keeps a watch of groups open, and puts its events into the cache.
func (r *reader) watchGroups(ctx context.Context) {
	logger := klog.FromContext(ctx)
	watch := stream[nstancev1.GroupEvent]{
		open: r.client.WatchGroups,
		opened: func() {
			r.update(func(c *cache) []string {
				c.watchOpened()
				return nil
			})
			select {
			case r.opened <- struct{}{}:
			default:
			}
		},
		received: func(event *nstancev1.GroupEvent) { r.apply(ctx, event) },
		lost: func(err error) time.Duration {
			logger.Info("Lost the watch of groups", "err", err)
			err = fmt.Errorf("watching the groups of shard %q: %w", r.shard, err)
			r.update(func(c *cache) []string {
				c.watchLost(err)
				return nil
			})
			return 0
		},
	}
	watch.keepOpen(ctx, r.groups.timing)
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

// watchErrors keeps a watch of errors open, and hands them to the handlers. The
// cache has no part in it: a server that reports no errors is as good as any.
func (r *reader) watchErrors(ctx context.Context) {
	logger := klog.FromContext(ctx)
	watch := stream[nstancev1.ErrorEvent]{
		open:   r.client.WatchErrors,
		opened: func() {},
		received: func(event *nstancev1.ErrorEvent) {
			r.groups.report(r.shard, wire.ErrorEvent(event))
		},
		lost: func(err error) time.Duration {
			// What ends the connection is logged with the watch of groups.
			logger.V(2).Info("Lost the watch of errors", "err", err)
			if status.Code(err) == codes.Unimplemented {
				return r.groups.timing.unimplemented
			}
			return 0
		},
	}
	watch.keepOpen(ctx, r.groups.timing)
}
