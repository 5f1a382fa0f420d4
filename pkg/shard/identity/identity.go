// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package identity holds the client certificate and the cluster CA with which
// the operator meets the shard servers.
package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
)

// errMissing is the reason of a handshake that failed because no identity has
// been set yet. It reaches callers as the text of an Unavailable status.
var errMissing = errors.New("no client certificate and cluster CA are set yet")

// Identity is a client certificate, its key and the cluster CA. They can be
// replaced at any time: each new connection is made with the ones in force, and
// no connection that exists is disturbed. An Identity is ready for use as it is
// and safe for concurrent use.
type Identity struct {
	mu          sync.RWMutex
	certificate *tls.Certificate
	authorities *x509.CertPool
}

// Set replaces the identity: a client certificate with its chain, its key, and
// the CA certificates that servers must chain to, all PEM. When it returns an
// error, the identity in force stays.
func (i *Identity) Set(certPEM, keyPEM, caPEM []byte) error {
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("reading the client certificate and its key: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(caPEM) {
		return errors.New("reading the cluster CA: no PEM certificate found")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.certificate, i.authorities = &certificate, authorities
	return nil
}

// tlsConfig is the configuration for one handshake, or errMissing. It keeps no
// sessions, so that every connection proves both sides anew.
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
		// A callback presents the certificate whatever authorities the server
		// names: if it does not fit, the server's refusal tells more than that of
		// an anonymous handshake would.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		},
	}, nil
}
