// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package pki makes and reads the certificates by which shard servers, operators
// and agents of one cluster know each other.
package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	// authorityLifetime is how long a new certificate authority is valid.
	authorityLifetime = 10 * 365 * 24 * time.Hour
	// clockSkew is how far notBefore lies in the past, so that a peer whose
	// clock is a little behind accepts a certificate that was just issued.
	clockSkew = 5 * time.Minute
)

// Authority is the certificate authority of one cluster. It is safe for use by
// several goroutines.
type Authority struct {
	certificate *x509.Certificate
	key         ed25519.PrivateKey
}

// NewAuthority makes a certificate authority with a new Ed25519 key. Nothing is
// stored: the authority lives as long as the returned value.
func NewAuthority(commonName string) (*Authority, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the key of authority %q: %w", commonName, err)
	}
	template, err := newTemplate(authorityLifetime)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: commonName}
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	template.IsCA = true
	// Only leaves are issued, so an intermediate authority is never right.
	template.MaxPathLenZero = true

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of authority %q: %w", commonName, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of authority %q: %w", commonName, err)
	}
	return &Authority{certificate: certificate, key: key}, nil
}

// CertificatePEM returns the certificate that peers trust (ca.crt).
func (a *Authority) CertificatePEM() []byte {
	return encodeCertificate(a.certificate.Raw)
}

// IssueServer issues a serving certificate for hosts, each an IP address or a
// DNS name, together with its new Ed25519 key in PKCS #8.
func (a *Authority) IssueServer(hosts []string, ttl time.Duration) (certPEM, keyPEM []byte, err error) {
	if len(hosts) == 0 {
		return nil, nil, errors.New("issuing a server certificate: no hosts given")
	}
	template, err := newTemplate(ttl)
	if err != nil {
		return nil, nil, err
	}
	template.Subject = pkix.Name{CommonName: hosts[0]}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(template)
}

// IssueClient issues a client certificate that says who c is, together with its
// new Ed25519 key in PKCS #8. Every field of c is mandatory.
func (a *Authority) IssueClient(c Client, ttl time.Duration) (certPEM, keyPEM []byte, err error) {
	if c.ID == "" || c.Tenant == "" || c.Role == "" {
		return nil, nil, fmt.Errorf("issuing a client certificate for %+v: id, tenant and role are mandatory", c)
	}
	role, err := roleExtension(c.Role)
	if err != nil {
		return nil, nil, fmt.Errorf("issuing a client certificate for %+v: %w", c, err)
	}
	template, err := newTemplate(ttl)
	if err != nil {
		return nil, nil, err
	}
	template.Subject = pkix.Name{CommonName: c.ID, Organization: []string{c.Tenant}}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	template.ExtraExtensions = []pkix.Extension{role}
	return a.issue(template)
}

// issue signs a leaf for a new key.
func (a *Authority) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generating the key of %q: %w", template.Subject, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, public, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing the certificate of %q: %w", template.Subject, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the key of %q: %w", template.Subject, err)
	}
	return encodeCertificate(der), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// newTemplate returns what all certificates have in common.
func newTemplate(ttl time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(ttl),
		BasicConstraintsValid: true,
	}, nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
