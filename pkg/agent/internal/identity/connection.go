// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

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

	"nstance.dev/operator/pkg/agent/internal/retry"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// Within 30 s the agent detects that its server does not respond any more
	// (https://pkg.go.dev/google.golang.org/grpc/keepalive#ClientParameters).
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second

	// The delay between attempts to connect grows from connectBaseDelay to connectMaxDelay.
	connectBaseDelay   = 500 * time.Millisecond
	connectMaxDelay    = 4 * time.Second
	connectDelayGrowth = 1.6
	connectDelayJitter = 0.2
	minConnectTimeout  = 5 * time.Second

	// releaseTimeout bounds how long users keep a replaced connection open.
	releaseTimeout = 10 * time.Second
)

// errReplaced is the cause of the canceled contexts of UntilReplaced.
var errReplaced = errors.New("the connection was replaced")

// Connection is the gRPC connection of the agent to its server. Replace replaces it when
// the agent has a new certificate. It is safe for concurrent use.
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

// NewConnection returns a Connection to an address, host:port. It connects at the first
// call, and reconnects at the first call after a failure.
func NewConnection(address string, credentials func() credentials.TransportCredentials) (*Connection, error) {
	c := &Connection{address: address, credentials: credentials}
	var err error
	c.current, err = c.dial()
	return c, err
}

func (c *Connection) dial() (*Conn, error) {
	// With passthrough the dialer resolves the address at each attempt. gRPC's DNS resolver
	// would resolve it at most every 30 s
	// (https://github.com/grpc/grpc-go/blob/master/internal/resolver/dns/dns_resolver.go).
	conn, err := grpc.NewClient("passthrough:///"+c.address,
		grpc.WithTransportCredentials(c.credentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  connectBaseDelay,
				Multiplier: connectDelayGrowth,
				Jitter:     connectDelayJitter,
				MaxDelay:   connectMaxDelay,
			},
			MinConnectTimeout: minConnectTimeout,
		}),
		// An agent always has streams, so it is never idle.
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

// Acquire returns the current connection. It stays open until Release, but at most
// releaseTimeout after it was replaced.
func (c *Connection) Acquire() *Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.users.Add(1)
	return c.current
}

// Release is called once for each Acquire.
func (c *Conn) Release() { c.users.Done() }

// Replaced returns a channel that is closed when the connection is replaced.
func (c *Conn) Replaced() <-chan struct{} { return c.replaced }

// Replace opens a connection with the present credentials and makes it current when it is
// ready. The old connection is closed when its users have released it.
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

// UntilReplaced returns a context that is canceled when the connection is replaced.
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

// StreamError converts the error of a stream whose context is from UntilReplaced for
// retry.Loop: if the connection was replaced, the next stream is opened without a delay.
func StreamError(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errReplaced) {
		return retry.ErrAgain
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
