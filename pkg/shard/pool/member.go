// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pool

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// member is the connection to one shard at one address. Its context is the
// lifetime of the work with it and carries a logger that names the shard.
type member struct {
	shard      string
	address    string
	ctx        context.Context
	stop       context.CancelCauseFunc
	connection *grpc.ClientConn
	client     nstancev1.OperatorServiceClient
}

// newMember makes a member. Nothing is dialed before the first call.
func newMember(ctx context.Context, shard, address string, options []grpc.DialOption) (*member, error) {
	connection, err := grpc.NewClient(target(address), options...)
	if err != nil {
		return nil, fmt.Errorf("making a client for shard %q at %s: %w", shard, address, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	return &member{
		shard:      shard,
		address:    address,
		ctx:        klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "shard", shard, "address", address)),
		stop:       stop,
		connection: connection,
		client:     nstancev1.NewOperatorServiceClient(connection),
	}, nil
}

// close ends the connection and every call that still uses it.
func (m *member) close() {
	// Close fails only when the connection is closed already.
	_ = m.connection.Close()
}
