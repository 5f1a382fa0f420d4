// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// clientID differs from the ids of operators: when an operator registers, the server accepts
// no other certificates with its id.
const clientID = "servertest"

// Operator returns a client that calls as the operator of a tenant.
func (s *Server) Operator(tenant string) nstancev1.OperatorServiceClient {
	s.t.Helper()
	return s.Dial(pki.Client{ID: clientID, Tenant: tenant, Role: pki.RoleOperator})
}

// Dial returns a client that calls as c, over a connection of its own.
func (s *Server) Dial(c pki.Client) nstancev1.OperatorServiceClient {
	s.t.Helper()
	return nstancev1.NewOperatorServiceClient(s.connect(s.Addr, s.certificate(c)))
}

// Connect returns a connection for operators with a certificate.
func (s *Server) Connect(certificate tls.Certificate) *grpc.ClientConn {
	s.t.Helper()
	return s.connect(s.Addr, certificate)
}

// Registration returns a client without a certificate.
func (s *Server) Registration() nstancev1.RegistrationServiceClient {
	s.t.Helper()
	return nstancev1.NewRegistrationServiceClient(s.connect(s.RegistrationAddr))
}

// Credentials returns the credentials of a client.
func (s *Server) Credentials(c pki.Client) credentials.TransportCredentials {
	s.t.Helper()
	return s.credentials(s.certificate(c))
}

func (s *Server) credentials(certificates ...tls.Certificate) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    pkitest.Roots(s.Authority),
		// Connections in memory also need a name.
		ServerName:   "localhost",
		Certificates: certificates,
	})
}

// DialAddress opens a connection to an address of the server, also in memory.
func (s *Server) DialAddress(ctx context.Context, address string) (net.Conn, error) {
	return s.network.dial(ctx, "tcp", address)
}

func (s *Server) certificate(c pki.Client) tls.Certificate {
	s.t.Helper()
	cert, key, err := s.Authority.IssueClient(c, certificateTTL)
	require.NoError(s.t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(s.t, err)
	return pair
}

func (s *Server) connect(address string, certificates ...tls.Certificate) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithContextDialer(s.DialAddress), grpc.WithTransportCredentials(s.credentials(certificates...)))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// network has the listeners and connections of one server, on the machine's network or in
// memory. All can be closed at once.
type network struct {
	// inMemory has the listeners by address. It is nil for the network of the
	// machine.
	inMemory map[string]*bufconn.Listener
	// patience is how long a listener waits for its port. The port of a server that is started again
	// may be the source port of a connection to another server in the meantime.
	patience time.Duration
	// addresses has the addresses at which the server listens, in order.
	addresses chan string

	// mu guards all maps.
	mu      sync.Mutex
	dropped bool
	open    []interface{ Close() error }
}

func newNetwork(inMemory bool) *network {
	n := &network{addresses: make(chan string, 5)}
	if inMemory {
		n.inMemory = map[string]*bufconn.Listener{}
	}
	return n
}

func (n *network) listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := n.newListener(ctx, address)
	if err != nil {
		return nil, err
	}
	if n.inMemory == nil {
		address = listener.Addr().String()
	}
	n.addresses <- address
	return &trackedListener{Listener: listener, network: n}, nil
}

func (n *network) newListener(ctx context.Context, address string) (net.Listener, error) {
	if n.inMemory == nil {
		return n.listenTCP(ctx, address)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inMemory[address] = bufconn.Listen(1 << 16)
	return n.inMemory[address], nil
}

// Free ports are from this range: Linux takes no source ports of connections from it, which could keep
// a server from listening on its port again after a restart
// (https://docs.kernel.org/networking/ip-sysctl.html, ip_local_port_range). The ports of the end-to-end
// tests begin behind it.
const (
	lowestPort = 10_000
	ports      = 10_000
)

// listenTCP listens on an address. Port 0 means a free port.
func (n *network) listenTCP(ctx context.Context, address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	for tries := 0; ; tries++ {
		if port == "0" {
			address = net.JoinHostPort(host, strconv.Itoa(lowestPort+rand.IntN(ports)))
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) && port == "0" && tries < ports {
			continue
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Since(begin) > n.patience {
			return listener, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	if n.inMemory == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	n.mu.Lock()
	listener, found := n.inMemory[address]
	n.mu.Unlock()
	if !found {
		return nil, fmt.Errorf("dialing %s: no listener", address)
	}
	return listener.DialContext(ctx)
}

func (n *network) add(closer interface{ Close() error }) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dropped {
		_ = closer.Close()
		return
	}
	n.open = append(n.open, closer)
}

func (n *network) drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropped = true
	for _, closer := range n.open {
		_ = closer.Close()
	}
}

type trackedListener struct {
	net.Listener
	network *network
}

func (l *trackedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.network.add(conn)
	}
	return conn, err
}
