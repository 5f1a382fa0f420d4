// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// CreateInstance creates one on-demand instance on a shard. Repeating the call with
// the same request id and spec returns the same instance, on servers that know the
// extension idempotency_key (docs/protocol.md#extensions). Errors are those of
// UpsertGroup.
func (p *Pool) CreateInstance(ctx context.Context, shardID, requestID string, spec shard.InstanceSpec) (shard.Instance, error) {
	var instance shard.Instance
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		reply, err := client.CreateInstance(ctx, &nstancev1.CreateInstanceRequest{IdempotencyKey: requestID, Config: wire.InstanceConfig(spec)})
		instance = shard.Instance{ID: reply.GetInstanceId(), State: shard.InstanceState(reply.GetStatus())}
		return err
	})
	if err != nil {
		return shard.Instance{}, fmt.Errorf("create an instance of group %q on shard %q: %w", spec.Group, shardID, err)
	}
	return instance, nil
}

// GetInstance returns one instance of a shard. shard.IsNotFound is true of the error
// if the server does not have the instance; other errors are those of UpsertGroup.
func (p *Pool) GetInstance(ctx context.Context, shardID, id string) (shard.Instance, error) {
	var instance shard.Instance
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		reply, err := client.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
		instance = wire.Instance(reply)
		return err
	})
	if err != nil {
		return shard.Instance{}, fmt.Errorf("get instance %s on shard %q: %w", id, shardID, err)
	}
	return instance, nil
}

// DeleteInstance deletes an instance on a shard, at once and without a drain, and
// reports whether the deletion is complete. That is so for an instance that the
// server does not have. Errors are those of UpsertGroup.
func (p *Pool) DeleteInstance(ctx context.Context, shardID, id string) (deleted bool, err error) {
	err = p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		reply, err := client.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: id})
		if status.Code(err) == codes.NotFound {
			deleted = true
			return nil
		}
		deleted = shard.NoticeState(reply.GetStatus()) == shard.Deleted
		return err
	})
	if err != nil {
		return false, fmt.Errorf("delete instance %s on shard %q: %w", id, shardID, err)
	}
	return deleted, nil
}

// AcknowledgeDrained confirms to a shard that the Node of an instance is drained. The
// server then deletes the instance at once. AcknowledgeDrained succeeds if the server
// does not have the instance; other errors are those of UpsertGroup.
func (p *Pool) AcknowledgeDrained(ctx context.Context, shardID, id string) error {
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		_, err := client.AcknowledgeDrained(ctx, &nstancev1.DrainAckRequest{InstanceId: id})
		return ignoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("acknowledge the drain of instance %s on shard %q: %w", id, shardID, err)
	}
	return nil
}
