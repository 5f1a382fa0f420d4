// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// CallTimeout is the deadline of each unary call. A call to a shard whose last
// attempt to connect failed does not wait for it: it fails at once.
const CallTimeout = 10 * time.Second

// errNotConnected says that a configured shard has no connection, because Run
// has not come to it yet or does not run.
var errNotConnected = status.Error(codes.Unavailable, "not connected yet")

// UpsertGroup gives a group on a shard the configuration, and returns the group
// as the server then has it. The call can be repeated. A shard that is not
// configured is shard.ErrUnknownShard; for the rest see shard.IsUnreachable and
// shard.IsRejected.
func (p *Pool) UpsertGroup(ctx context.Context, shardID, key string, config shard.GroupConfig) (shard.Group, error) {
	var group shard.Group
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		answer, err := client.UpsertGroup(ctx, wire.Upsert(key, config))
		group = wire.Group(answer)
		return err
	})
	if err != nil {
		return shard.Group{}, fmt.Errorf("upserting group %q on shard %q: %w", key, shardID, err)
	}
	return group, nil
}

// DeleteGroup removes what UpsertGroup stored on a shard: a static group returns
// to the server's configuration, any other is scaled to zero and disappears. A
// group that the server does not know is deleted already and no error. Other
// errors are those of UpsertGroup.
func (p *Pool) DeleteGroup(ctx context.Context, shardID, key string) error {
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		_, err := client.DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Key: key})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("deleting group %q on shard %q: %w", key, shardID, err)
	}
	return nil
}

// call makes one unary call with its deadline.
func (p *Pool) call(ctx context.Context, shardID string, do func(context.Context, nstancev1.OperatorServiceClient) error) error {
	client, err := p.client(shardID)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	err = do(limited, client)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		// Without this, it would look like a connection that was closed.
		return ctx.Err()
	}
	return err
}

// client is the client of a shard, shard.ErrUnknownShard or errNotConnected.
func (p *Pool) client(shardID string) (nstancev1.OperatorServiceClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	endpoint, ok := p.endpoints[shardID]
	if !ok {
		return nil, shard.ErrUnknownShard
	}
	// A member that is ending, or is about to because it has the shard's former
	// address, must not be used.
	m, ok := p.members[shardID]
	if !ok || m.address != endpoint.Operator || m.ctx.Err() != nil {
		return nil, errNotConnected
	}
	return m.client, nil
}
