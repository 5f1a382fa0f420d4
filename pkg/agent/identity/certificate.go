// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
)

// Certificate is the client certificate of the instance.
type Certificate struct {
	tls.Certificate
	// Issued is when the agent received it. NotBefore is earlier, because servers issue
	// certificates that are valid for clocks that are behind.
	Issued time.Time
}

// Expired reports whether the certificate has expired.
func (c *Certificate) Expired(now time.Time) bool {
	return !now.Before(c.Leaf.NotAfter)
}

// Certificate returns the stored certificate, also if it has expired, and nil if there is
// none.
func (i *Identity) Certificate() (*Certificate, error) {
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

// SetCertificate stores a certificate that a server issued. It must be for the key and the
// instance, and chain to the CA.
func (i *Identity) SetCertificate(certPEM []byte) error {
	certificate, err := i.parse(certPEM)
	if err != nil {
		return fmt.Errorf("read the certificate that the server issued: %w", err)
	}
	authorities, err := i.CA()
	if err != nil {
		return err
	}
	options := x509.VerifyOptions{Roots: authorities, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := certificate.Leaf.Verify(options); err != nil {
		return fmt.Errorf("verify the certificate that the server issued: %w", err)
	}
	return i.write(certificateFile, certPEM)
}

// parse reads a certificate of the instance.
func (i *Identity) parse(certPEM []byte) (*Certificate, error) {
	key, err := i.existingKey()
	if err != nil {
		return nil, err
	}
	certificate := &Certificate{Certificate: tls.Certificate{PrivateKey: key}}
	for block, rest := pem.Decode(certPEM); block != nil; block, rest = pem.Decode(rest) {
		certificate.Certificate.Certificate = append(certificate.Certificate.Certificate, block.Bytes)
	}
	if len(certificate.Certificate.Certificate) == 0 {
		return nil, errors.New("no PEM block found")
	}
	if certificate.Leaf, err = x509.ParseCertificate(certificate.Certificate.Certificate[0]); err != nil {
		return nil, err
	}
	if !key.Public().(ed25519.PublicKey).Equal(certificate.Leaf.PublicKey) {
		return nil, errors.New("it is not for the key of the instance")
	}
	if id := certificate.Leaf.Subject.CommonName; id != i.instanceID {
		return nil, fmt.Errorf("it is that of %q, not of instance %q", id, i.instanceID)
	}
	return certificate, nil
}

// Credentials returns gRPC client credentials that read the folder at each handshake, so
// that a new certificate or CA applies to the next connection: TLS 1.3 with the
// certificate of the instance, and a server that chains to the CA and has the host of the
// dialed address.
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
	authorities, err := c.identity.CA()
	if err != nil {
		return nil, nil, err
	}
	// Without a ServerName, gRPC's credentials take the host of the authority.
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: authorities}
	if c.mutual {
		certificate, err := c.identity.Certificate()
		if err != nil {
			return nil, nil, err
		}
		if certificate == nil {
			return nil, nil, errors.New("the instance has no certificate yet")
		}
		// The callback presents the certificate even if the server does not list its
		// authority: the server's error is then more specific.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &certificate.Certificate, nil
		}
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (c *transportCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}
