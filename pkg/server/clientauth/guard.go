// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package clientauth decides which clients of the OperatorService are served. It decides from
// the objects in the storage of the cluster: which certificates are current or revoked, and
// which Kubernetes cluster a tenant belongs to (docs/protocol.md#authentication).
package clientauth

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	// interval is how often the connected clients are checked.
	interval = 15 * time.Second
	// margin is by how much a check may be late.
	margin = 5 * time.Second
	// A connection is closed a tenth of its time before its certificate expires, at most
	// maxLead before it. A connection that was opened less than minRemaining before is not.
	maxLead      = 10 * time.Second
	minRemaining = 5 * time.Second
	// rejectDelay is how long the streams of a connection are closed before the connection
	// itself, so that the client receives the reason. Calls are rejected with the same
	// reason.
	rejectDelay = time.Second
	// reconnectDelay is the same for a client that connects again. It is shorter than
	// the time after which operators open a stream again, and calls are served.
	reconnectDelay = 200 * time.Millisecond
)

// Guard admits the calls of clients, and closes the connections of clients that are no longer
// admitted. It reads the storage at the first call of a client, every interval while the
// client is connected, and at most every minInterval for calls that would be rejected. If the
// storage cannot be read, the last read applies; a client without any read is admitted.
type Guard struct {
	logger  klog.Logger
	records *objects[registration.Record]
	owners  *objects[Owner]
	// agents has the revoked agents of the shard, in the object agentsKey.
	agents    *objects[registration.RevokedAgents]
	agentsKey string

	// authority has the accepted authorities, nil until SetAuthority.
	authority atomic.Pointer[pki.Authority]

	mu sync.Mutex
	// connections are the connections whose handshake has finished.
	connections map[*connection]struct{}
	// changes counts the calls of AuthorityChanged.
	changes int
}

// New returns a Guard without connections for the servers of a shard. store is the storage of the
// cluster. The Guard creates objects in it, and never changes them.
func New(logger klog.Logger, store storage.Store, shard string) *Guard {
	return &Guard{
		logger:      logger,
		records:     newObjects[registration.Record](logger, store),
		owners:      newObjects[Owner](logger, store),
		agents:      newObjects[registration.RevokedAgents](logger, store),
		agentsKey:   storage.RevokedAgentsKey(shard),
		connections: map[*connection]struct{}{},
	}
}

// Run checks the connected clients every interval until ctx is done.
func (g *Guard) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.checkConnections(ctx)
		}
	}
}

// SetAuthority sets the authority of the certificates of clients. Before it, a Guard does not
// compare them: a handshake has verified each.
func (g *Guard) SetAuthority(authority *pki.Authority) { g.authority.Store(authority) }

// AuthorityChanged closes all connections after the accepted authorities have changed: clients
// with a certificate of an authority that is no longer accepted are rejected, and the others learn
// from the next handshake that the authorities have changed. A connection whose handshake has begun
// before is closed when it ends.
func (g *Guard) AuthorityChanged() {
	g.mu.Lock()
	g.changes++
	g.mu.Unlock()
	for _, c := range g.connected() {
		g.authorityChanged(c)
	}
}

func (g *Guard) authorityChanges() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changes
}

func (g *Guard) authorityChanged(c *connection) {
	if g.checkAuthority(c) == nil {
		g.close(c, reconnect("the authorities of the cluster have changed"), reconnectDelay)
	}
}

// checkAuthority closes a connection whose certificate has an authority that is no longer accepted.
func (g *Guard) checkAuthority(c *connection) error {
	authority := g.authority.Load()
	if authority == nil || authority.Accepts(c.root) {
		return nil
	}
	err := unauthenticated(errors.New("the authority of the client certificate is no longer accepted: register with a new nonce unless a newer certificate is at hand"))
	g.close(c, err, rejectDelay)
	return err
}

// checkConnections closes connections and streams of clients that are no longer admitted.
func (g *Guard) checkConnections(ctx context.Context) {
	connected := g.connected()
	start := g.records.now()
	records, owners, agents := map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}
	for _, c := range connected {
		if c.isAgent() {
			agents[g.agentsKey] = struct{}{}
		}
		if c.recordKey != "" {
			records[c.recordKey] = struct{}{}
		}
		if c.ownerKey != "" && c.namesCluster.Load() {
			owners[c.ownerKey] = struct{}{}
		}
	}
	g.records.refresh(ctx, records)
	g.owners.refresh(ctx, owners)
	g.agents.refresh(ctx, agents)
	revoked := g.agents.state(g.agentsKey).value
	for _, c := range connected {
		if c.isAgent() {
			_ = g.checkAgent(c, revoked)
		}
		// The handshake may have begun before the authorities changed.
		_ = g.checkAuthority(c)
		g.checkConnection(c, start)
		if owner := g.owners.state(c.ownerKey).value; owner != nil {
			c.closeStreams(owner)
		}
	}
}

// expire closes a connection before its certificate expires, so that a client that has a
// newer certificate connects again without a rejected call. A connection that was opened
// later is closed when its certificate expires. expire returns the timer.
func (g *Guard) expire(c *connection) *time.Timer {
	remaining := time.Until(c.certificate.NotAfter)
	if remaining > minRemaining {
		return time.AfterFunc(remaining-min(remaining/10, maxLead), func() {
			g.close(c, reconnect("the client certificate expires at "+c.certificate.NotAfter.UTC().Format(time.RFC3339)), reconnectDelay)
		})
	}
	return time.AfterFunc(remaining+1, func() {
		var none *registration.Record
		g.close(c, unauthenticated(none.Check(c.certificate, c.certificate.NotAfter.Add(1))), rejectDelay)
	})
}

// checkConnection closes a connection whose certificate is no longer accepted, or whose grace
// period is over before the next check. Records that were read since start have every
// certificate of the connections.
func (g *Guard) checkConnection(c *connection, start int64) {
	state := g.records.state(c.recordKey)
	now := time.Now()
	err := state.value.Check(c.certificate, now)
	switch {
	case err == nil:
		if errors.Is(state.value.Check(c.certificate, now.Add(interval+margin)), registration.ErrReplaced) {
			g.close(c, reconnect("the client certificate was replaced"), reconnectDelay)
		}
	case state.read <= start:
		// The certificate may be newer than the record. If it has expired, expire closes the connection.
	case errors.Is(err, registration.ErrReplaced):
		g.close(c, reconnect(err.Error()), reconnectDelay)
	default:
		g.close(c, unauthenticated(err), rejectDelay)
	}
}

// checkAgent closes the connection of an agent whose certificate is revoked, and returns its
// status.
func (g *Guard) checkAgent(c *connection, revoked *registration.RevokedAgents) error {
	err := revoked.Check(c.client.ID, c.certificate)
	if err != nil {
		err = unauthenticated(err)
		g.close(c, err, rejectDelay)
	}
	return err
}

// checkCertificate returns a gRPC status if a call with the certificate of c is not
// admitted.
func (g *Guard) checkCertificate(ctx context.Context, c *connection) error {
	if err := c.rejection(); err != nil {
		return err
	}
	if err := g.checkAuthority(c); err != nil {
		return err
	}
	start := g.records.now()
	var record *registration.Record
	if c.recordKey != "" {
		record, _ = g.records.get(ctx, c.recordKey)
	}
	err := record.Check(c.certificate, time.Now())
	if err != nil && !errors.Is(err, registration.ErrExpired) {
		// The certificate may be newer than the record.
		if record, err = g.records.getSince(ctx, c.recordKey, start); err != nil {
			return status.Errorf(codes.Unavailable, "read which certificate of tenant %q is current: %v", c.client.Tenant, err)
		}
		err = record.Check(c.certificate, time.Now())
	}
	if err != nil {
		err = unauthenticated(err)
		g.close(c, err, rejectDelay)
		return err
	}
	if !c.isAgent() {
		return nil
	}
	revoked, _ := g.agents.get(ctx, g.agentsKey)
	return g.checkAgent(c, revoked)
}

func unauthenticated(err error) error {
	return status.Error(codes.Unauthenticated, err.Error())
}

// reconnect returns the status of the streams of a connection whose client has, or may have,
// a newer certificate: the client connects again with it.
func reconnect(reason string) error {
	return status.Error(codes.Unavailable, "connect again: "+reason)
}

// close closes the streams of a connection with a status, and the connection after a
// delay.
func (g *Guard) close(c *connection, err error, delay time.Duration) {
	if c.end(err, delay) {
		g.logger.Info("Closing the connection of a client", "client", c.client.ID, "tenant", c.client.Tenant,
			"address", c.conn.RemoteAddr().String(), "reason", status.Convert(err).Message())
	}
}

// Unary is the interceptor that serves only calls that are admitted. It must follow the
// interceptor of grpcapi.Authorize, which rejects certificates without a client.
func (g *Guard) Unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, _, err := g.admit(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// Stream is like Unary. It closes a stream that is no longer admitted, with the status that a
// new call would get.
func (g *Guard) Stream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c, cluster, err := g.admit(stream.Context())
	if err != nil {
		return err
	}
	ctx, remove, err := c.open(stream.Context(), cluster)
	if err != nil {
		return err
	}
	defer remove()
	err = handler(server, &serverStream{ServerStream: stream, ctx: ctx})
	if closed, ok := status.FromError(context.Cause(ctx)); ok && closed.Code() != codes.OK {
		return closed.Err()
	}
	return err
}

// serverStream is a stream with another context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

// admit returns the connection of a call and the Kubernetes cluster that it names, or a
// gRPC status if it is not admitted.
func (g *Guard) admit(ctx context.Context) (c *connection, cluster string, err error) {
	if p, ok := peer.FromContext(ctx); ok {
		c, _ = p.AuthInfo.(*connection)
	}
	if c == nil {
		return nil, "", status.Error(codes.Unauthenticated, "the connection has no client")
	}
	cluster, err = namedCluster(ctx)
	if err == nil {
		err = g.checkCertificate(ctx, c)
	}
	if err == nil {
		err = g.checkCluster(ctx, c, cluster)
	}
	if err != nil {
		klog.FromContext(ctx).Info("Rejected a call", "reason", status.Convert(err).Message())
		return nil, "", err
	}
	return c, cluster, nil
}
