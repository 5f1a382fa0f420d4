// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package connection is the gRPC connection of an agent to its server, which is replaced
// by a new one when the agent has a new certificate.
package connection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"nstance.dev/operator/pkg/agent/retry"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// The agent notices within 30 s that packets of its server are lost.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second

	// The delay between attempts to connect grows from firstDelay to lastDelay.
	firstDelay     = 500 * time.Millisecond
	lastDelay      = 4 * time.Second
	delayGrowth    = 1.6
	delayJitter    = 0.2
	connectTimeout = 5 * time.Second

	// releaseTimeout is how long the streams of a replaced connection have to end.
	releaseTimeout = 10 * time.Second
)

// errReplaced is why the streams of a connection end that has been replaced.
var errReplaced = errors.New("the connection was replaced")

// Connection connects to one address. It is safe for concurrent use.
type Connection struct {
	address     string
	credentials func() credentials.TransportCredentials

	mu      sync.Mutex
	current *Conn
}

// Conn is one gRPC connection of a Connection.
type Conn struct {
	nstancev1.AgentServiceClient
	conn     *grpc.ClientConn
	users    sync.WaitGroup
	replaced chan struct{}
}

// New returns a Connection to an address, host:port. It connects when it is used first, and
// again whenever it is needed.
func New(address string, credentials func() credentials.TransportCredentials) (*Connection, error) {
	c := &Connection{address: address, credentials: credentials}
	var err error
	c.current, err = c.dial()
	return c, err
}

func (c *Connection) dial() (*Conn, error) {
	// The dialer resolves the address at each attempt; gRPC's own resolver would resolve it
	// every 30 s at most.
	conn, err := grpc.NewClient("passthrough:///"+c.address,
		grpc.WithTransportCredentials(c.credentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  firstDelay,
				Multiplier: delayGrowth,
				Jitter:     delayJitter,
				MaxDelay:   lastDelay,
			},
			MinConnectTimeout: connectTimeout,
		}),
		// An agent always has streams.
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", c.address, err)
	}
	return &Conn{
		AgentServiceClient: nstancev1.NewAgentServiceClient(conn),
		conn:               conn,
		replaced:           make(chan struct{}),
	}, nil
}

// Acquire returns the current connection. It stays open until Release, but only for some
// seconds after it was replaced.
func (c *Connection) Acquire() *Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.users.Add(1)
	return c.current
}

// Release is called once for each Acquire.
func (c *Conn) Release() { c.users.Done() }

// Replaced is closed when there is a newer connection.
func (c *Conn) Replaced() <-chan struct{} { return c.replaced }

// Replace opens another connection with the present credentials, and when it is ready
// makes it the current one. The one before is closed when its users have released it.
func (c *Connection) Replace(ctx context.Context) error {
	next, err := c.dial()
	if err != nil {
		return err
	}
	next.conn.Connect()
	for state := next.conn.GetState(); state != connectivity.Ready; state = next.conn.GetState() {
		if !next.conn.WaitForStateChange(ctx, state) {
			_ = next.conn.Close()
			return fmt.Errorf("open another connection to %s: %w", c.address, ctx.Err())
		}
	}
	c.mu.Lock()
	before := c.current
	c.current = next
	c.mu.Unlock()
	close(before.replaced)
	go before.close()
	return nil
}

// close closes a connection that was replaced.
func (c *Conn) close() {
	released := make(chan struct{})
	go func() {
		c.users.Wait()
		close(released)
	}()
	timer := time.NewTimer(releaseTimeout)
	defer timer.Stop()
	select {
	case <-released:
	case <-timer.C:
	}
	_ = c.conn.Close()
}

// Close closes the current connection.
func (c *Connection) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.conn.Close()
}

// UntilReplaced returns a context that is done when there is a newer connection.
func (c *Conn) UntilReplaced(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.replaced:
			cancel(errReplaced)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// StreamError returns the error of a stream with a context of UntilReplaced for
// retry.Loop: the next stream is opened at once if the connection was replaced.
func StreamError(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errReplaced) {
		return retry.ErrAgain
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
