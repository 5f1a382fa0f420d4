// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package identity stores the client certificate and the cluster CA with which the
// operator connects to the shard servers.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
)

// errMissing fails handshakes before the first Set. Callers receive its text in a status
// Unavailable.
var errMissing = errors.New("no client certificate and cluster CA are set yet")

// Identity is a client certificate, its key and the cluster CA. They can be replaced at any
// time: new connections use the current identity, and existing connections stay open. The zero
// Identity is ready for use. It is safe for concurrent use.
type Identity struct {
	// RequireURI makes the connections refuse servers whose certificate names no shard. It must
	// be set before the first connection.
	RequireURI bool

	mu          sync.RWMutex
	certificate *tls.Certificate
	authorities *x509.CertPool
	// trusted are the certificates of authorities.
	trusted []*x509.Certificate
	// handshakes has the last handshake with each server, by the URI of its shard.
	handshakes map[string]authorities.Handshake
	handlers   []func()
}

// AddHandler registers handler, which is called after each handshake. It must be called before the
// first connection.
func (i *Identity) AddHandler(handler func()) { i.handlers = append(i.handlers, handler) }

// Outdated reports whether a server has shown in its last handshake that the CA of the cluster is
// being replaced, and the identity does not have what follows from it yet.
func (i *Identity) Outdated() bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.certificate == nil {
		return false
	}
	for _, handshake := range i.handshakes {
		if handshake.Outdated(i.trusted, i.certificate.Leaf) {
			return true
		}
	}
	return false
}

func (i *Identity) observe(server string, handshake authorities.Handshake) {
	i.mu.Lock()
	if i.handshakes == nil {
		i.handshakes = map[string]authorities.Handshake{}
	}
	i.handshakes[server] = handshake
	i.mu.Unlock()
	for _, handler := range i.handlers {
		handler()
	}
}

// Set replaces the identity: a client certificate with its chain, its key, and the CA
// certificates that issue the servers' certificates, all in PEM. If it returns an error, the
// current identity stays.
func (i *Identity) Set(certPEM, keyPEM, caPEM []byte) error {
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("read the client certificate and its key: %w", err)
	}
	trusted, err := authorities.Parse(caPEM)
	if err != nil {
		return fmt.Errorf("read the cluster CA: %w", err)
	}
	pool := x509.NewCertPool()
	for _, authority := range trusted {
		pool.AddCert(authority)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.certificate, i.authorities, i.trusted = &certificate, pool, trusted
	return nil
}

// tlsConfig returns the configuration for a handshake, or errMissing. Session resumption is
// disabled, so that every connection authenticates both sides again.
func (i *Identity) tlsConfig() (*tls.Config, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	certificate := i.certificate
	if certificate == nil {
		return nil, errMissing
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    i.authorities,
		// The callback presents the certificate even if the server does not list its
		// authority: the server's error is then more specific than the error for an anonymous
		// handshake.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		},
	}, nil
}

// Credentials returns a function that returns gRPC client credentials for the servers of a
// shard. They use TLS 1.3, and at each handshake the current client certificate and CA. The
// server's certificate must contain the host of the endpoint. If it names another shard, the
// error is a shard.WrongServerError. A certificate without a shard is accepted unless RequireURI is
// set: the server is then verified by its groups (docs/protocol.md#authentication). A certificate
// of a workload never is.
func (i *Identity) Credentials(cluster string) func(shard string) credentials.TransportCredentials {
	return func(shard string) credentials.TransportCredentials {
		return &transportCredentials{
			TransportCredentials: credentials.NewTLS(nil),
			identity:             i,
			server:               identifier.ServerURI(cluster, shard).String(),
		}
	}
}

// AnonymousCredentials returns gRPC client credentials without a client certificate. Servers
// are verified in the same way as by Credentials, with Identity.RequireURI.
func AnonymousCredentials(trusted *x509.CertPool, cluster, shard string, requireURI bool) credentials.TransportCredentials {
	want := identifier.ServerURI(cluster, shard).String()
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    trusted,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyServer(state.PeerCertificates[0], want, requireURI)
		},
	})
}

// transportCredentials replaces the client handshake of the embedded TLS credentials.
type transportCredentials struct {
	credentials.TransportCredentials
	identity *Identity
	// server is the URI that the server's certificate must have if it has a URI of a server.
	server string
}

func (c *transportCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.identity.tlsConfig()
	if err != nil {
		return nil, nil, err
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		return verifyServer(state.PeerCertificates[0], c.server, c.identity.RequireURI)
	}
	var acceptable [][]byte
	present := config.GetClientCertificate
	config.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		acceptable = info.AcceptableCAs
		return present(info)
	}
	secured, auth, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
	if info, ok := auth.(credentials.TLSInfo); ok && err == nil {
		c.identity.observe(c.server, authorities.NewHandshake(info.State, acceptable))
	}
	return secured, auth, err
}

func (c *transportCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}

// verifyServer returns a shard.WrongServerError if the certificate names other servers than
// want, or none although it has to, and an error for the certificate of a workload.
func verifyServer(certificate *x509.Certificate, want string, requireURI bool) error {
	if err := identifier.CheckServer(certificate); err != nil {
		return err
	}
	names := identifier.ServerNames(certificate.URIs)
	switch {
	case slices.Contains(names, want):
		return nil
	case len(names) == 0 && !requireURI:
		return nil
	case len(names) == 0:
		names = []string{"no name"}
	}
	return &shard.WrongServerError{Want: want, Got: strings.Join(names, ", ")}
}
