// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/client-go/kubernetes/fake"

	"nstance.dev/operator/pkg/server"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// inMemory is a server whose connections are in memory, so that it can be in a
// bubble of synctest.
type inMemory struct {
	*server.Server
	// path is that of the configuration file.
	path       string
	kubernetes *fake.Clientset
	operator   nstancev1.OperatorServiceClient
	// stop returns when nothing of the server runs any more.
	stop func()
}

func serveInMemory(t *testing.T) inMemory {
	t.Helper()
	path := configure(t, "health:1", "operators:1")
	s, kubernetes := newServer(t, path, closed())
	listeners := map[string]*bufconn.Listener{"health:1": bufconn.Listen(1 << 16), "operators:1": bufconn.Listen(1 << 16)}
	s.Listen = func(_ context.Context, address string) (net.Listener, error) { return listeners[address], nil }
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- s.Run(ctx) }()
	conn := dial(t, path, listeners["operators:1"])
	return inMemory{
		Server: s, path: path, kubernetes: kubernetes, operator: nstancev1.NewOperatorServiceClient(conn),
		stop: func() {
			cancel()
			if err := <-stopped; err != nil {
				t.Errorf("stopped with %v", err)
			}
			_ = conn.Close()
		},
	}
}

// dial connects the operator of a configuration to listener.
func dial(t *testing.T, path string, listener *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	folder := filepath.Dir(path)
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, "operator.crt"), filepath.Join(folder, "operator.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	conn, err := grpc.NewClient("passthrough:///127.0.0.1",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}})))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
