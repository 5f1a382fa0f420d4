// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package identity stores the client certificate and the cluster CA with which the
// operator connects to the shard servers.
package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
)

// errMissing is the error of a handshake before the first Set. It reaches callers
// as the text of an Unavailable status.
var errMissing = errors.New("no client certificate and cluster CA are set yet")

// Identity is a client certificate, its key and the cluster CA. They can be
// replaced at any time: new connections use the current ones, and existing
// connections stay open. The zero Identity is ready for use. It is safe for
// concurrent use.
type Identity struct {
	mu          sync.RWMutex
	certificate *tls.Certificate
	authorities *x509.CertPool
}

// Set replaces the identity: a client certificate with its chain, its key, and
// the CA certificates that servers must chain to, all PEM. When it returns an
// error, the current identity stays.
func (i *Identity) Set(certPEM, keyPEM, caPEM []byte) error {
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("read the client certificate and its key: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(caPEM) {
		return errors.New("read the cluster CA: no PEM certificate found")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.certificate, i.authorities = &certificate, authorities
	return nil
}

// tlsConfig returns the configuration for one handshake, or errMissing. Without
// session resumption every connection authenticates both sides again.
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
		// The callback presents the certificate even if the server does not list
		// its authority: the server's error is then more specific than that of an
		// anonymous handshake.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		},
	}, nil
}
