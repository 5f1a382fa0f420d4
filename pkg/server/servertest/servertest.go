// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package servertest runs real shard servers inside a test: mutual TLS, storage
// and reconciler are those of the product, the instances are Nodes of a
// clientset in memory.
package servertest

import (
	"cmp"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance/kwok"
	"nstance.dev/operator/pkg/server/pki"
)

// ClusterID is the cluster of every server of this package.
const ClusterID = "test"

// certificateTTL is longer than any test takes.
const certificateTTL = time.Hour

// Options say what is special about a server. The zero value is good.
type Options struct {
	// Shard is the shard's id and zone. Default: us-west-2a.
	Shard string
	// Templates, SubnetPools, DynamicSubnetPools, Groups, InstanceTypes and Quota
	// are the values of these keys of the configuration, in its own syntax.
	// Default: a template "worker", a pool "default", no limit on pools, no
	// groups, the built-in instance types and no quota.
	Templates          string
	SubnetPools        string
	DynamicSubnetPools string
	Groups             string
	InstanceTypes      string
	Quota              string
	// BootDelay is how long an instance is pending. Default: not at all.
	BootDelay time.Duration
	// Authority issues the server's certificate, and its clients' must come
	// from it. Default: one of its own.
	Authority *pki.Authority
	// DataDir keeps dynamic groups. Default: a folder of its own. Give the
	// folder of a server that stopped to start it again.
	DataDir string
	// Addr is the address for operators. Default: a free port. Give the address
	// of a server that stopped to start it again.
	Addr string
	// Kubernetes holds the Nodes. Default: an empty one of NewClientset. Give
	// that of a server that stopped to start it again.
	Kubernetes kubernetes.Interface
}

// Server is a shard server that runs.
type Server struct {
	// Recorder holds the calls that arrived.
	*Recorder
	// Addr is the address for operators, host:port.
	Addr string
	// HealthAddr is the address of /health and /metrics, host:port.
	HealthAddr string
	// Authority, DataDir and Kubernetes are those of Options or the defaults.
	Authority  *pki.Authority
	DataDir    string
	Kubernetes kubernetes.Interface

	t       testing.TB
	options Options
	// folder holds the configuration file and the certificates.
	folder      string
	readConfig  chan time.Time
	connections *connections
	cancel      context.CancelFunc
	stopped     chan struct{}
}

// Start starts a server and returns when it serves. It stops with the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{
		Recorder:    &Recorder{},
		Authority:   o.Authority,
		DataDir:     o.DataDir,
		Kubernetes:  o.Kubernetes,
		t:           t,
		options:     o,
		folder:      t.TempDir(),
		readConfig:  make(chan time.Time),
		connections: &connections{},
		stopped:     make(chan struct{}),
	}
	if s.Authority == nil {
		authority, err := pki.NewAuthority(ClusterID)
		if err != nil {
			t.Fatal(err)
		}
		s.Authority = authority
	}
	s.DataDir = cmp.Or(s.DataDir, t.TempDir())
	if s.Kubernetes == nil {
		s.Kubernetes = NewClientset()
	}

	s.writeCertificates()
	s.writeFile(configFile, []byte(o.configuration()))
	c, err := config.Load(s.ConfigPath())
	if err != nil {
		t.Fatal(err)
	}
	provider, err := kwok.New(c, s.Kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(2)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	s.cancel = cancel
	t.Cleanup(s.Stop)

	listeners := make(chan net.Listener, 2)
	product := &server.Server{
		Config:   c,
		DataDir:  s.DataDir,
		Provider: provider,
		Listen: func(ctx context.Context, address string) (net.Listener, error) {
			listener, err := s.connections.listen(ctx, address)
			if err == nil {
				listeners <- listener
			}
			return listener, err
		},
		GRPCOptions: []grpc.ServerOption{
			grpc.ChainUnaryInterceptor(s.recordUnary),
			grpc.ChainStreamInterceptor(s.recordStream),
		},
		ReadConfig: s.readConfig,
	}
	go func() {
		defer close(s.stopped)
		if err := product.Run(ctx); err != nil {
			t.Errorf("server: %v", err)
		}
	}()
	// The server listens for health checks first, and for operators as soon as
	// it can serve them.
	for _, address := range []*string{&s.HealthAddr, &s.Addr} {
		select {
		case listener := <-listeners:
			*address = listener.Addr().String()
		case <-s.stopped:
			t.Fatal("the server stopped before it served")
		}
	}
	return s
}

// Stop stops the server as SIGTERM would and returns when it has stopped. It
// may be called again.
func (s *Server) Stop() {
	s.cancel()
	<-s.stopped
}

// Kill drops every connection at once, as if the process had died, and returns
// when the server is gone.
func (s *Server) Kill() {
	s.connections.drop()
	s.Stop()
}

func (s *Server) writeCertificates() {
	s.t.Helper()
	cert, key, err := s.Authority.IssueServer([]string{"127.0.0.1", "::1", "localhost"}, certificateTTL)
	if err != nil {
		s.t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": s.Authority.CertificatePEM(), "tls.crt": cert, "tls.key": key} {
		s.writeFile(name, content)
	}
}

// connections are those that one server has accepted, so that they can
// be dropped under its feet.
type connections struct {
	mu      sync.Mutex
	dropped bool
	open    []interface{ Close() error }
}

func (c *connections) listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &trackedListener{Listener: listener, connections: c}, nil
}

func (c *connections) add(closer interface{ Close() error }) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped {
		_ = closer.Close()
		return
	}
	c.open = append(c.open, closer)
}

func (c *connections) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped = true
	for _, closer := range c.open {
		_ = closer.Close()
	}
}

type trackedListener struct {
	net.Listener
	connections *connections
}

func (l *trackedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.connections.add(conn)
	}
	return conn, err
}
