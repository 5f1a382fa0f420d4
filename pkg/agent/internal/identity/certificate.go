// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/base/identifier"
)

// Certificate is the client certificate of the instance.
type Certificate struct {
	tls.Certificate
	// Issued is the time when the agent received the certificate. NotBefore is earlier, so
	// that clocks that are behind accept the certificate.
	Issued time.Time
}

// Expired reports whether the certificate has expired.
func (c *Certificate) Expired(now time.Time) bool {
	return !now.Before(c.Leaf.NotAfter)
}

// Certificate returns the stored certificate, even if it has expired, or nil if no
// certificate is stored.
func (i *Identity) Certificate() (*Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	certPEM, err := i.read(certificateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	certificate, err := i.parse(certPEM)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", i.path(certificateFile), err)
	}
	info, err := os.Stat(i.path(certificateFile))
	if err != nil {
		return nil, err
	}
	certificate.Issued = info.ModTime()
	return certificate, nil
}

// SetCertificate stores a certificate that a server issued. It must be for the instance and its
// key or its next key, and chain to the CA. With a certificate for the next key, this becomes the
// key of the instance.
func (i *Identity) SetCertificate(certPEM []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.setCertificate(certPEM)
}

// setCertificate is SetCertificate for a caller that has locked mu.
func (i *Identity) setCertificate(certPEM []byte) error {
	certificate, err := i.parse(certPEM)
	if err != nil {
		return fmt.Errorf("read the certificate that the server issued: %w", err)
	}
	roots, err := i.CA()
	if err != nil {
		return err
	}
	options := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := certificate.Leaf.Verify(options); err != nil {
		return fmt.Errorf("verify the certificate that the server issued: %w", err)
	}
	if err := i.write(certificateFile, certPEM); err != nil {
		return err
	}
	return i.finishReplacement()
}

// parse reads a certificate of the instance.
func (i *Identity) parse(certPEM []byte) (*Certificate, error) {
	leaf, chain, err := decode(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := i.keyOf(leaf.PublicKey)
	if err != nil {
		return nil, err
	}
	if id := leaf.Subject.CommonName; id != i.instanceID {
		return nil, fmt.Errorf("it is for instance %q, not %q", id, i.instanceID)
	}
	return &Certificate{Certificate: tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}}, nil
}

// decode returns the first certificate of PEM blocks, and the content of all blocks.
func decode(certPEM []byte) (leaf *x509.Certificate, chain [][]byte, err error) {
	for block, rest := pem.Decode(certPEM); block != nil; block, rest = pem.Decode(rest) {
		chain = append(chain, block.Bytes)
	}
	if len(chain) == 0 {
		return nil, nil, errors.New("no PEM block found")
	}
	leaf, err = x509.ParseCertificate(chain[0])
	return leaf, chain, err
}

// Credentials returns gRPC client credentials for TLS 1.3 with the certificate of the
// instance. The certificate of the server must chain to the CA, be valid for the host of
// the dialed address, have ServerURI, and not be the certificate of a workload. The files are read at each handshake, so that a new certificate or CA
// applies to the next connection.
func (i *Identity) Credentials() credentials.TransportCredentials {
	return &transportCredentials{TransportCredentials: credentials.NewTLS(nil), identity: i, mutual: true}
}

// AnonymousCredentials returns credentials like Credentials without a certificate of the
// instance.
func (i *Identity) AnonymousCredentials() credentials.TransportCredentials {
	return &transportCredentials{TransportCredentials: credentials.NewTLS(nil), identity: i}
}

// transportCredentials replaces the client handshake of the embedded TLS credentials.
type transportCredentials struct {
	credentials.TransportCredentials
	identity *Identity
	mutual   bool
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *transportCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	roots, err := c.identity.CA()
	if err != nil {
		return nil, nil, err
	}
	// Without a ServerName, gRPC's credentials use the host of the authority
	// (https://pkg.go.dev/google.golang.org/grpc/credentials#NewTLS).
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, VerifyConnection: c.identity.verifyServer}
	var acceptable [][]byte
	if c.mutual {
		certificate, err := c.identity.Certificate()
		if err != nil {
			return nil, nil, err
		}
		if certificate == nil {
			return nil, nil, errors.New("the instance has no certificate yet")
		}
		// With a callback, the certificate is sent even if the server does not list its
		// authority. The error of the server is then more specific.
		config.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			acceptable = info.AcceptableCAs
			return &certificate.Certificate, nil
		}
	}
	secured, auth, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
	if info, ok := auth.(credentials.TLSInfo); ok && err == nil && c.mutual {
		c.identity.mu.Lock()
		c.identity.last = authorities.NewHandshake(info.State, acceptable)
		c.identity.mu.Unlock()
	}
	return secured, auth, err
}

// errOtherServer means that a server has not the URI that is required.
var errOtherServer = errors.New("the certificate of the server belongs to another server")

// verifyServer checks the certificate of a server beyond its chain and its host.
func (i *Identity) verifyServer(state tls.ConnectionState) error {
	certificate := state.PeerCertificates[0]
	if err := identifier.CheckServer(certificate); err != nil {
		return err
	}
	names := identifier.ServerNames(certificate.URIs)
	if i.ServerURI != "" && !slices.Contains(names, i.ServerURI) {
		return fmt.Errorf("%w: it names %q, needs to name %q", errOtherServer, names, i.ServerURI)
	}
	return nil
}

// Clone implements credentials.TransportCredentials.
func (c *transportCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}
