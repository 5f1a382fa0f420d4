// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"time"
)

// servingLifetime is how long a serving certificate is valid. It is short, since
// renewal is automatic.
const servingLifetime = 24 * time.Hour

// Serving is the serving certificate of one server. The cluster's authority issues
// it and reissues it before it expires, and when the authority issues with another key, so that
// the server needs no restart. It is safe for concurrent use.
type Serving struct {
	authority *Authority
	names     Names

	mu      sync.Mutex
	current *tls.Certificate
	// issuer is the authority's certificate that has issued current.
	issuer *x509.Certificate
	// renewAt is when a third of the lifetime is left.
	renewAt time.Time
}

// NewServing returns the serving certificate for names. Clients can reach the server
// only by its hosts.
func NewServing(authority *Authority, names Names) *Serving {
	return &Serving{authority: authority, names: names}
}

// Config returns the TLS configuration of listeners whose clients have no
// certificate yet: TLS 1.3.
func (s *Serving) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.certificate}
}

// MutualConfig returns the TLS configuration of listeners whose clients must
// have a certificate of the cluster's authority: TLS 1.3. PeerClient reads the
// client's identity from the certificate. Each handshake accepts the authorities that are
// accepted at this moment.
func (s *Serving) MutualConfig() *tls.Config {
	config := s.Config()
	config.ClientCAs = s.authority.current.Load().pool
	config.ClientAuth = tls.RequireAndVerifyClientCert
	// gRPC adds its protocol to a copy of the configuration, which that of GetConfigForClient
	// replaces (https://pkg.go.dev/google.golang.org/grpc/credentials#NewTLS).
	config.NextProtos = []string{"h2"}
	// A resumed session would not present the certificate again.
	config.SessionTicketsDisabled = true
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := config.Clone()
		current.ClientCAs = s.authority.current.Load().pool
		return current, nil
	}
	return config
}

// Expires returns when the certificate of a handshake at this moment would expire.
func (s *Serving) Expires() (time.Time, error) {
	certificate, err := s.certificate(nil)
	if err != nil {
		return time.Time{}, err
	}
	return certificate.Leaf.NotAfter, nil
}

// certificate returns the certificate for a handshake.
func (s *Serving) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if issuer := s.authority.issuing().certificate; s.issuer != issuer {
		s.current, s.issuer = nil, issuer
	}
	if s.current != nil && now.Before(s.renewAt) {
		return s.current, nil
	}
	certPEM, keyPEM, err := s.authority.IssueServer(s.names, servingLifetime)
	if err != nil {
		return nil, err
	}
	issued, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("load the server certificate and its key: %w", err)
	}
	s.current, s.renewAt = &issued, now.Add(servingLifetime*2/3)
	return s.current, nil
}
