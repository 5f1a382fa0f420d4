// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package informer caches the groups and deletion notices of the shard servers. It implements
// shard.Groups and shard.Notices. Watches and periodic lists update the caches, and handlers
// receive the changes.
package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// groupHandler implements handler for the cache of groups.
type groupHandler struct{ shard.GroupHandler }

func (h groupHandler) keyChanged(shard, key string) {
	if h.OnGroup != nil {
		h.OnGroup(shard, key)
	}
}

func (h groupHandler) shardChanged(shard string) {
	if h.OnShard != nil {
		h.OnShard(shard)
	}
}

// Groups is the cache of the groups of all shards that are being served. Like a client-go
// informer it has a watch, a periodic list, HasSynced and handlers. Its methods are safe for
// concurrent use. Returned groups share memory with the cache and are read only.
type Groups struct {
	shards[*groupCache, groupHandler]
	options Options
	timing  timing
	// lists is the number of started lists. The lock of the caches guards it.
	lists uint64
	// holders has the shards of each group. The lock of the caches guards it.
	holders holders
}

// NewGroups returns an empty cache. Serve fills it.
func NewGroups(options Options) *Groups {
	holding := holders{}
	return &Groups{
		shards: shards[*groupCache, groupHandler]{
			newCache: func(shardID string) *groupCache { return newGroupCache(shardID, holding) },
			caches:   map[string]*groupCache{},
		},
		holders: holding,
		options: options,
		timing:  defaultTiming.probing(cmp.Or(options.ProbeInterval, DefaultProbeInterval)),
	}
}

// AddHandler registers handler. Handlers are called in the order of their registration. They
// must be added before the first Serve, because they are not called for groups that are
// already in the cache.
func (g *Groups) AddHandler(handler shard.GroupHandler) {
	g.addHandler(groupHandler{handler})
}

// HasSynced reports whether the cache of a shard is complete: since Serve was called, a list
// has succeeded and a watch was opened. It stays true during an outage; see Reachable.
func (g *Groups) HasSynced(shard string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shard]
	return ok && c.synced()
}

// Synced reports whether HasSynced is true for all shards.
func (g *Groups) Synced(shards []string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, id := range shards {
		if c, ok := g.caches[id]; !ok || !c.synced() {
			return false
		}
	}
	return true
}

// Reachable reports whether the watch of a shard is open and the last list since its opening
// has succeeded, and if not the reason. The reason is the first error since the shard was last
// reachable. Only an error of another kind (shard.IsUnreachable, shard.IsWrongServer,
// shard.IsOtherCluster, shard.IsNotServing or shard.Exceeded) replaces it, so that it can be the
// message of a condition. The reason is nil while the first connection is being established.
func (g *Groups) Reachable(shard string) (bool, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shard]
	if !ok {
		return false, nil
	}
	return c.reachable(), c.reason
}

// Relist requests a list of the groups of a shard, and returns a mark for ListedSince. It does
// not wait. If the shard is not being served, it is listed later.
func (g *Groups) Relist(shard string) (mark uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.caches[shard]; ok {
		select {
		case c.relist <- struct{}{}:
		default:
		}
	}
	return g.lists
}

// ListedSince reports whether a list of a shard's groups has succeeded that began after the
// call of Relist that returned mark.
func (g *Groups) ListedSince(shard string, mark uint64) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shard]
	return ok && c.lastListed > mark
}

// Get returns the last reported state of a group, and whether the shard has the group. The
// shard need not be reachable.
func (g *Groups) Get(shardID, key string) (shard.Group, bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shardID]
	if !ok {
		return shard.Group{}, false
	}
	group, ok := c.groups[key]
	return group, ok
}

// List returns the last reported groups of a shard, sorted by key. The shard need not be
// reachable.
func (g *Groups) List(shardID string) []shard.Group {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shardID]
	if !ok {
		return nil
	}
	groups := make([]shard.Group, 0, len(c.groups))
	for _, group := range c.groups {
		groups = append(groups, group)
	}
	slices.SortFunc(groups, func(a, b shard.Group) int { return strings.Compare(a.Key, b.Key) })
	return groups
}

// ShardsWith returns the sorted ids of the shards whose last reported groups contain a group. The
// shards need not be reachable. The result must not be modified.
func (g *Groups) ShardsWith(key string) []string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.holders[key]
}

// Observe puts the reply to UpsertGroup into the cache, so that the next sync reads it and a
// list in progress does not revert it. The instances of a cached group are kept: the reply is
// about configuration, and instances that a server omits must not appear to be deleted. No
// handler is called, because the caller has the reply. Observe ignores a shard that is not
// being served.
func (g *Groups) Observe(shardID string, group shard.Group) {
	g.update(shardID, func(c *groupCache) []string {
		if cached, ok := c.groups[group.Key]; ok {
			group.ActualSize, group.ProviderIDs = cached.ActualSize, cached.ProviderIDs
			group.ListsInstances, group.Instances = cached.ListsInstances, cached.Instances
		}
		// A group that is too large is not cached: the next list reports it.
		_, _ = c.put(group)
		return nil
	})
}

// report calls the handlers' OnError.
func (g *Groups) report(shardID string, event shard.ErrorEvent) {
	g.mu.RLock()
	handlers := g.handlers
	g.mu.RUnlock()
	for _, handler := range handlers {
		if handler.OnError != nil {
			handler.OnError(shardID, event)
		}
	}
}

// Serve updates the cache of a shard until ctx is done, and returns when all its goroutines
// have returned. A shard may have only one Serve at a time. The logger of ctx should have the
// name of the shard.
//
// The watch of groups receives changes at once. A list after each opening of the watch and at
// every probe interval adds the changes that the watch missed. While the shard does not
// respond, its groups stay and only Reachable is false. The groups also stay when Serve
// returns, unless the cause is shard.ErrRemoved: then the shard is dropped. A separate watch
// receives errors for OnError; its state affects nothing else.
//
// A server that names no shard is verified by a list (see Options). Until then its events are
// ignored.
func (g *Groups) Serve(ctx context.Context, shardID string, client nstancev1.OperatorServiceClient) {
	g.start(shardID)
	r := &groupReader{groups: g, shard: shardID, client: client, relist: make(chan struct{}, 1)}
	r.update(func(c *groupCache) []string {
		c.relist = r.relist
		return nil
	})
	var watching sync.WaitGroup
	watching.Go(func() { r.watchGroups(ctx) })
	watching.Go(func() { r.watchErrors(ctx) })
	r.listPeriodically(ctx)
	watching.Wait()
	g.stop(shardID, errors.Is(context.Cause(ctx), shard.ErrRemoved))
}

// groupReader has the state of one Serve.
type groupReader struct {
	groups *Groups
	shard  string
	client nstancev1.OperatorServiceClient
	// relist contains a token if the watch of groups was opened or Relist was called since the
	// last list was started.
	relist chan struct{}
	// invalid is the number of groups with an invalid name in the last list.
	invalid int
	// versions are the versions of earlier lists. Only list uses them.
	versions versions
}

func (r *groupReader) update(change func(*groupCache) []string) {
	r.groups.update(r.shard, change)
}

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
		received: func(event *nstancev1.GroupEvent) error { return r.apply(ctx, event) },
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

// apply puts an event into the cache. A deletion event may contain only the key and the
// tenant. The error is a *shard.LimitError.
func (r *groupReader) apply(ctx context.Context, event *nstancev1.GroupEvent) (err error) {
	r.update(func(c *groupCache) []string {
		c.link.lastMessage = time.Now()
		return nil
	})
	group := wire.Group(event.GetGroup())
	if identifier.Validate(group.Key) != nil {
		klog.FromContext(ctx).V(2).Info("Ignored an event of a group whose name is not valid", "group", first([]string{group.Key}))
		return nil
	}
	switch event.GetType() {
	case nstancev1.GroupEvent_TYPE_UPSERT:
		r.update(func(c *groupCache) (changed []string) {
			changed, err = c.put(group)
			return changed
		})
	case nstancev1.GroupEvent_TYPE_DELETE:
		r.update(func(c *groupCache) []string { return c.remove(group.Key) })
	default:
		klog.FromContext(ctx).Info("Ignored a group event of unknown type", "type", event.GetType(), "group", group.Key)
	}
	return err
}

// watchErrors watches errors until ctx is done, and calls the handlers. It does not affect the
// cache: a shard is reachable even if its server does not report errors.
func (r *groupReader) watchErrors(ctx context.Context) {
	logger := klog.FromContext(ctx)
	watch := stream[nstancev1.ErrorEvent]{
		open:       r.client.WatchErrors,
		unverified: func() {},
		opened:     func() {},
		received: func(event *nstancev1.ErrorEvent) error {
			if reported := wire.ErrorEvent(event); len(reported.Group) <= shard.MaxString && len(reported.InstanceID) <= shard.MaxString {
				r.groups.report(r.shard, reported)
			}
			return nil
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
