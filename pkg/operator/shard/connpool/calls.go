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

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// CallTimeout is the timeout of each unary call. If the last attempt to connect to a shard
// failed, a call fails at once instead of waiting for the next attempt.
const CallTimeout = 10 * time.Second

// errNotConnected: Run has not created the connection of a configured shard yet, or is not
// running.
var errNotConnected = status.Error(codes.Unavailable, "not connected yet")

// UpsertGroup sets the configuration of a group on a shard, and returns the resulting group.
// Repeating the call changes nothing. The error is shard.ErrUnknownShard if the shard is not
// configured; for other errors see shard.IsUnreachable, shard.IsRejected and shard.IsStale.
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

// DeleteGroup removes the configuration of UpsertGroup from a shard: a static group returns to
// the server's configuration, any other group is scaled to zero and then deleted. DeleteGroup
// succeeds if the server does not have the group, or if the server knows that the group of the
// revision's object was deleted before. The errors are the same as for UpsertGroup.
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

// ignoreNotFound returns nil if the server does not have the object.
func ignoreNotFound(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// errDeadline: the call would end after the deadline of Options.
var errDeadline = status.Error(codes.DeadlineExceeded, "another operator may lead")

// call makes a unary call with CallTimeout, or a shorter timeout if the deadline of Options is
// earlier.
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
		// The gRPC status alone is the same as for a closed connection.
		return ctx.Err()
	}
	return err
}

// client returns the client of a shard. The error is shard.ErrUnknownShard or errNotConnected.
func (p *Pool) client(shardID string) (nstancev1.OperatorServiceClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	endpoint, ok := p.endpoints[shardID]
	if !ok {
		return nil, shard.ErrUnknownShard
	}
	// A connection that is being closed must not be used, nor a connection to a former
	// address, which will be closed.
	c, ok := p.connections[shardID]
	if !ok || c.address != endpoint.Operator || c.ctx.Err() != nil {
		return nil, errNotConnected
	}
	return c.client, nil
}

// CreateInstance creates an on-demand instance on a shard. Repeating the call with the same
// request id and spec returns the same instance, if the server supports the extension
// idempotency_key (docs/protocol.md#extensions). The errors are the same as for UpsertGroup.
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

// GetInstance returns an instance of a shard. shard.IsNotFound(err) is true if the server does
// not have the instance; other errors are the same as for UpsertGroup.
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

// DeleteInstance deletes an instance on a shard at once, without a drain, and reports whether
// the deletion is complete. It is complete if the server does not have the instance. The
// errors are the same as for UpsertGroup.
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

// AcknowledgeDrained confirms to a shard that the Node of an instance is drained. The server
// then deletes the instance at once. The call succeeds if the server does not have the
// instance; the errors are the same as for UpsertGroup.
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

// RenewCertificate returns a new client certificate for a key, with the identity of the present
// certificate. Only the server of the cluster's leader issues certificates; others return
// FailedPrecondition.
func (p *Pool) RenewCertificate(ctx context.Context, shardID string, request keys.Request) (keys.Issued, error) {
	var issued keys.Issued
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		reply, err := client.RenewCertificate(ctx, &nstancev1.RenewCertificateRequest{
			PublicKeyPem: request.PublicKeyPEM, CertificateRequest: request.CertificateRequest, TrustedAuthorities: request.TrustedAuthorities,
		})
		issued = keys.Issued{CertificatePEM: reply.GetClientCertificatePem(), AuthoritiesPEM: reply.GetAuthoritiesPem()}
		return err
	})
	if err != nil {
		return keys.Issued{}, fmt.Errorf("renew the client certificate at shard %q: %w", shardID, err)
	}
	return issued, nil
}
