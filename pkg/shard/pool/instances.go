// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pool

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// CreateInstance orders one instance on a shard. A call that is repeated with the
// same request id and order gives the same instance, from servers that know the
// extension idempotency_key (wire contract). Errors are those of UpsertGroup.
func (p *Pool) CreateInstance(ctx context.Context, shardID, requestID string, order shard.InstanceOrder) (shard.Instance, error) {
	var instance shard.Instance
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		answer, err := client.CreateInstance(ctx, &nstancev1.CreateInstanceRequest{IdempotencyKey: requestID, Config: wire.InstanceConfig(order)})
		instance = shard.Instance{ID: answer.GetInstanceId(), State: shard.InstanceState(answer.GetStatus())}
		return err
	})
	if err != nil {
		return shard.Instance{}, fmt.Errorf("ordering an instance of group %q on shard %q: %w", order.Group, shardID, err)
	}
	return instance, nil
}

// Instance asks a shard for one instance. One that the server does not know is an
// error for which shard.IsNotFound is true; the others are those of UpsertGroup.
func (p *Pool) Instance(ctx context.Context, shardID, id string) (shard.Instance, error) {
	var instance shard.Instance
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		answer, err := client.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
		instance = wire.Instance(answer)
		return err
	})
	if err != nil {
		return shard.Instance{}, fmt.Errorf("asking shard %q for instance %s: %w", shardID, id, err)
	}
	return instance, nil
}

// DeleteInstance ends an instance on a shard, at once and without a drain, and
// tells whether it is gone already. One that the server does not know is. Errors
// are those of UpsertGroup.
func (p *Pool) DeleteInstance(ctx context.Context, shardID, id string) (gone bool, err error) {
	err = p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		answer, err := client.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: id})
		if status.Code(err) == codes.NotFound {
			gone = true
			return nil
		}
		gone = shard.NoticeState(answer.GetStatus()) == shard.Deleted
		return err
	})
	if err != nil {
		return false, fmt.Errorf("deleting instance %s on shard %q: %w", id, shardID, err)
	}
	return gone, nil
}

// AcknowledgeDrained tells a shard that the Node of an instance is drained. The
// server deletes the instance at once. One that it does not know is deleted
// already and no error; other errors are those of UpsertGroup.
func (p *Pool) AcknowledgeDrained(ctx context.Context, shardID, id string) error {
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		_, err := client.AcknowledgeDrained(ctx, &nstancev1.DrainAckRequest{InstanceId: id})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("acknowledging the drain of instance %s on shard %q: %w", id, shardID, err)
	}
	return nil
}
