// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"nstance.dev/operator/pkg/agent/internal/retry"
	"nstance.dev/operator/pkg/testing/runtest"
)

func newConnection(t *testing.T) (*Connection, *grpc.Server) {
	t.Helper()
	server := grpc.NewServer()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	c, err := NewConnection(listener.Addr().String(), insecure.NewCredentials)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c, server
}

// The old connection stays open until its users have released it.
func TestReplaceMovesUsersToAnotherConnection(t *testing.T) {
	c, _ := newConnection(t)
	before := c.Acquire()
	ctx, cancel := before.UntilReplaced(t.Context())
	defer cancel()
	require.NoError(t, c.Replace(t.Context()))
	<-ctx.Done()
	assert.ErrorIs(t, StreamError(ctx, ctx.Err()), retry.ErrAgain)
	after := c.Acquire()
	assert.NotSame(t, before, after)
	assert.Equal(t, connectivity.Ready, after.conn.GetState())
	assert.NotEqual(t, connectivity.Shutdown, before.conn.GetState())
	before.Release()
	runtest.Eventually(t, "the connection before is closed", func() bool { return before.conn.GetState() == connectivity.Shutdown })
	after.Release()
	assert.Equal(t, connectivity.Ready, after.conn.GetState())
}

func TestConnectionStaysIfAnotherOneCannotBeOpened(t *testing.T) {
	c, server := newConnection(t)
	before := c.Acquire()
	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, c.Replace(ctx))
	after := c.Acquire()
	assert.Same(t, before, after)
	select {
	case <-before.Replaced():
		t.Error("the connection was replaced")
	default:
	}
}
