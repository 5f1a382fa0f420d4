// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// connection is the connection to one shard at one address. Its context is done when
// the connection is no longer needed, and has a logger with the name of the shard.
type connection struct {
	shard      string
	address    string
	ctx        context.Context
	stop       context.CancelCauseFunc
	clientConn *grpc.ClientConn
	client     nstancev1.OperatorServiceClient
}

// newConnection creates a connection. It does not dial before the first call.
func newConnection(ctx context.Context, shard, address string, options []grpc.DialOption) (*connection, error) {
	clientConn, err := grpc.NewClient(target(address), options...)
	if err != nil {
		return nil, fmt.Errorf("create a client for shard %q at %s: %w", shard, address, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	return &connection{
		shard:      shard,
		address:    address,
		ctx:        klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "shard", shard, "address", address)),
		stop:       stop,
		clientConn: clientConn,
		client:     nstancev1.NewOperatorServiceClient(clientConn),
	}, nil
}

// close closes the connection. It cancels calls that still use it.
func (c *connection) close() {
	// Close fails only when the connection is closed already.
	_ = c.clientConn.Close()
}
