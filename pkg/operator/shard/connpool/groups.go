// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// CallTimeout is the timeout of each unary call. A call to a shard whose last
// attempt to connect failed does not wait for the next one: it fails at once.
const CallTimeout = 10 * time.Second

// errNotConnected is the error of a call to a configured shard that has no
// connection, because Run has not created one yet or is not running.
var errNotConnected = status.Error(codes.Unavailable, "not connected yet")

// UpsertGroup sets the configuration of a group on a shard, and returns the group
// as the server then has it. Repeating the call changes nothing. The error for a
// shard that is not configured is shard.ErrUnknownShard; for other errors see
// shard.IsUnreachable, shard.IsRejected and shard.IsStale.
func (p *Pool) UpsertGroup(ctx context.Context, shardID, key string, config shard.GroupConfig) (shard.Group, error) {
	var group shard.Group
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		reply, err := client.UpsertGroup(ctx, wire.Upsert(key, config))
		group = wire.Group(reply)
		return err
	})
	if err != nil {
		return shard.Group{}, fmt.Errorf("upsert group %q on shard %q: %w", key, shardID, err)
	}
	return group, nil
}

// DeleteGroup removes what UpsertGroup stored on a shard: a static group returns
// to the server's configuration, any other is scaled to zero and then deleted.
// DeleteGroup succeeds if the server does not have the group, or if it knows that the
// group of the revision's object was deleted before. Other errors are those of
// UpsertGroup.
func (p *Pool) DeleteGroup(ctx context.Context, shardID, key string, revision *shard.Revision) error {
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		_, err := client.DeleteGroup(ctx, wire.Delete(key, revision))
		return ignoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("delete group %q on shard %q: %w", key, shardID, err)
	}
	return nil
}

// ignoreNotFound returns nil for the error of a server that does not have the object.
func ignoreNotFound(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// errDeadline is the error of a call that would be over too late (see Options).
var errDeadline = status.Error(codes.DeadlineExceeded, "another operator may lead")

// call makes one unary call with CallTimeout, or with less if the deadline of Options
// is earlier.
func (p *Pool) call(ctx context.Context, shardID string, do func(context.Context, nstancev1.OperatorServiceClient) error) error {
	client, err := p.client(shardID)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(CallTimeout)
	if p.deadline != nil {
		limit := p.deadline()
		if !time.Now().Before(limit) {
			return errDeadline
		}
		if limit.Before(deadline) {
			deadline = limit
		}
	}
	limited, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err = do(limited, client)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		// The gRPC status alone would look like that of a closed connection.
		return ctx.Err()
	}
	return err
}

// client returns the client of a shard, or shard.ErrUnknownShard or errNotConnected.
func (p *Pool) client(shardID string) (nstancev1.OperatorServiceClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	endpoint, ok := p.endpoints[shardID]
	if !ok {
		return nil, shard.ErrUnknownShard
	}
	// A connection that is being closed, or will be because it has the shard's
	// former address, must not be used.
	c, ok := p.connections[shardID]
	if !ok || c.address != endpoint.Operator || c.ctx.Err() != nil {
		return nil, errNotConnected
	}
	return c.client, nil
}
