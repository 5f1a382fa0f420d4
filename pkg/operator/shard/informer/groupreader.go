// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Serve updates the cache of one shard until ctx is done, and returns when all its
// goroutines have returned. There must be one Serve per shard at a time. The logger of
// ctx should have the name of the shard.
//
// The watch of groups receives changes at once. A list after each opening of the watch
// and at every probe interval adds the changes that the watch missed. While the shard
// does not respond, its groups stay and only Reachable is false. The groups also stay
// when Serve returns, unless the cause is shard.ErrRemoved: then the shard is dropped.
// Another watch receives errors for OnError. Its state has no effect on the other methods
// and handlers.
//
// A server that names no shard is verified by a list (see Options). Until then its
// events are ignored.
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

// groupReader reads the groups and errors of one shard during one Serve.
type groupReader struct {
	groups *Groups
	shard  string
	client nstancev1.OperatorServiceClient
	// relist contains a token if the watch of groups was opened, or Relist was called, and
	// no list was started since.
	relist chan struct{}
}

// listPeriodically lists the groups after each opening of the watch and each call of
// Relist, and then at intervals.
func (r *groupReader) listPeriodically(ctx context.Context) {
	retry := r.groups.timing.newBackoff()
	next := time.NewTimer(r.groups.timing.connectTimeout)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.relist:
		case <-next.C:
		}
		if r.list(ctx) {
			retry.Reset()
			next.Reset(jitter(r.groups.timing.listInterval))
		} else {
			next.Reset(retry.NextBackOff())
		}
	}
}

// list makes the cache equal to the server's groups and reports whether it succeeded.
// It does not wait for a connection after a failure, because its error is then the
// reason why the shard is not reachable.
func (r *groupReader) list(ctx context.Context) bool {
	r.update(func(c *groupCache) []string {
		r.groups.lists++
		c.startList(r.groups.lists)
		return nil
	})
	limited, cancel := context.WithTimeout(ctx, r.groups.timing.callTimeout)
	defer cancel()
	var server grpcpeer.Peer
	reply, err := r.client.ListGroups(limited, &emptypb.Empty{}, grpc.Peer(&server))
	groups := convert(reply)
	if err == nil {
		err = r.verify(ctx, conninfo.Of(&server), groups)
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot list groups", "err", err)
		err = fmt.Errorf("list the groups of shard %q: %w", r.shard, err)
		r.update(func(c *groupCache) []string {
			c.listFailed(err)
			return nil
		})
		return false
	}
	r.update(func(c *groupCache) []string {
		c.link.lastList = time.Now()
		return c.finishList(groups)
	})
	if info := conninfo.Of(&server); info != nil {
		info.Verify()
	}
	return true
}

func convert(reply *nstancev1.ListGroupsResponse) []shard.Group {
	groups := make([]shard.Group, 0, len(reply.GetGroups()))
	for _, group := range reply.GetGroups() {
		groups = append(groups, wire.Group(group))
	}
	return groups
}

func (r *groupReader) update(change func(*groupCache) []string) {
	r.groups.update(r.shard, change)
}
