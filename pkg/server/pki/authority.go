// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package pki issues and reads the certificates with which the shard servers,
// operators and agents of one cluster authenticate to each other.
package pki

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/base/keys"
)

const (
	// authorityLifetime is how long a new certificate authority is valid.
	authorityLifetime = 10 * 365 * 24 * time.Hour
	// ClockSkew is how far notBefore is in the past, so that a peer whose clock is behind
	// accepts a certificate that was just issued.
	ClockSkew = 15 * time.Minute
)

// Authority is the certificate authority of one cluster. It issues with one key. While the key is
// being replaced, it has the certificate of another key too, which clients and servers accept
// beside the first (docs/runbooks/rotate-the-ca.md#rotate-the-ca). It is safe for concurrent use.
type Authority struct {
	current atomic.Pointer[authoritySet]
}

// signer is a certificate of the authority, and its key.
type signer struct {
	certificate *x509.Certificate
	key         ed25519.PrivateKey
}

func authorityOf(s signer) *Authority {
	a := &Authority{}
	a.current.Store(newAuthoritySet(s))
	return a
}

func (a *Authority) issuing() signer { return a.current.Load().signers[0] }

// NewAuthority creates a certificate authority with a new Ed25519 key. It stores
// nothing.
func NewAuthority(commonName string) (*Authority, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of authority %q: %w", commonName, err)
	}
	return NewAuthorityForKey(commonName, key)
}

// NewAuthorityForKey is like NewAuthority for an existing key. Each call creates another
// certificate. Any of these certificates verifies what any of the authorities has issued.
func NewAuthorityForKey(commonName string, key ed25519.PrivateKey) (*Authority, error) {
	return newAuthorityNamed(pkix.Name{CommonName: commonName}, key)
}

func newAuthorityNamed(subject pkix.Name, key ed25519.PrivateKey) (*Authority, error) {
	template, err := newTemplate(authorityLifetime)
	if err != nil {
		return nil, err
	}
	commonName := subject.CommonName
	template.Subject = subject
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	template.IsCA = true
	// Only leaf certificates are issued, so an intermediate authority is never valid
	// (https://www.rfc-editor.org/rfc/rfc5280#section-4.2.1.9).
	template.MaxPathLenZero = true

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of authority %q: %w", commonName, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of authority %q: %w", commonName, err)
	}
	return authorityOf(signer{certificate, key}), nil
}

// LoadAuthority returns the authority with a stored certificate, PEM, and its key. The
// certificate must belong to an authority with this key.
func LoadAuthority(certPEM []byte, key ed25519.PrivateKey) (*Authority, error) {
	certificate, err := ParseCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of the authority: %w", err)
	}
	if !certificate.IsCA {
		return nil, fmt.Errorf("the certificate of %q is not that of an authority", certificate.Subject)
	}
	if !key.Public().(ed25519.PublicKey).Equal(certificate.PublicKey) {
		return nil, fmt.Errorf("the certificate of authority %q belongs to another key", certificate.Subject)
	}
	return authorityOf(signer{certificate, key}), nil
}

// CertificatePEM returns the certificates that peers trust (ca.crt). The first is the certificate
// of the key that issues. It is empty for a nil authority.
func (a *Authority) CertificatePEM() []byte {
	if a == nil {
		return nil
	}
	return a.current.Load().pem
}

// CommonName returns the common name of the authority's certificate.
func (a *Authority) CommonName() string {
	return a.issuing().certificate.Subject.CommonName
}

// KeyPEM returns the private key that issues.
func (a *Authority) KeyPEM() ([]byte, error) {
	return keys.EncodePrivate(a.issuing().key)
}

// Names are the names in a serving certificate.
type Names struct {
	// Hosts are IP addresses and DNS names, at least one.
	Hosts []string
	// URI names the shard of the server; nil leaves it out.
	URI *url.URL
}

// IssueServer issues a serving certificate together with its new Ed25519 key in
// PKCS #8.
func (a *Authority) IssueServer(names Names, ttl time.Duration) (certPEM, keyPEM []byte, err error) {
	if len(names.Hosts) == 0 {
		return nil, nil, errors.New("issue a server certificate: no hosts given")
	}
	template, err := newTemplate(ttl)
	if err != nil {
		return nil, nil, err
	}
	template.Subject = pkix.Name{CommonName: names.Hosts[0]}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	keys.AddAltNames(template, names.Hosts)
	if names.URI != nil {
		template.URIs = []*url.URL{names.URI}
	}
	return a.issue(template)
}

// IssueClient issues a client certificate with the identity of c, together with its
// new Ed25519 key in PKCS #8. Every field of c is mandatory.
func (a *Authority) IssueClient(c Client, ttl time.Duration) (certPEM, keyPEM []byte, err error) {
	template, err := clientTemplate(c, ttl)
	if err != nil {
		return nil, nil, err
	}
	return a.issue(template)
}

// SignClient issues a client certificate with the identity of c for a public key.
// Every field of c is mandatory.
func (a *Authority) SignClient(c Client, key ed25519.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	template, err := clientTemplate(c, ttl)
	if err != nil {
		return nil, err
	}
	return a.sign(template, key)
}

func clientTemplate(c Client, ttl time.Duration) (*x509.Certificate, error) {
	if c.ID == "" || c.Tenant == "" || c.Role == "" {
		return nil, fmt.Errorf("issue a client certificate for %+v: id, tenant and role are mandatory", c)
	}
	role, err := roleExtension(c.Role)
	if err != nil {
		return nil, fmt.Errorf("issue a client certificate for %+v: %w", c, err)
	}
	template, err := newTemplate(ttl)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: c.ID, Organization: []string{c.Tenant}}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	template.ExtraExtensions = []pkix.Extension{role}
	return template, nil
}

// issue signs a leaf certificate for a new key.
func (a *Authority) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the key of %q: %w", template.Subject, err)
	}
	certificate, err := a.sign(template, public)
	if err != nil {
		return nil, nil, err
	}
	if keyPEM, err = keys.EncodePrivate(private); err != nil {
		return nil, nil, fmt.Errorf("encode the key of %q: %w", template.Subject, err)
	}
	return EncodeCertificate(certificate), keyPEM, nil
}

// sign signs a leaf certificate for a key. It expires at the latest with the
// authority, since no peer would accept it after that.
func (a *Authority) sign(template *x509.Certificate, key crypto.PublicKey) (*x509.Certificate, error) {
	template.KeyUsage = x509.KeyUsageDigitalSignature
	s := a.issuing()
	if template.NotAfter.After(s.certificate.NotAfter) {
		template.NotAfter = s.certificate.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.certificate, key, s.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %q: %w", template.Subject, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of %q: %w", template.Subject, err)
	}
	return certificate, nil
}

// newTemplate returns the fields that all certificates share.
func newTemplate(ttl time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-ClockSkew),
		NotAfter:              now.Add(ttl),
		BasicConstraintsValid: true,
	}, nil
}

// Workload is the identity of software on an instance, such as a kubelet. It is not a Client:
// its certificate has no role, so no service of a shard server accepts it, and is marked, so that
// no agent or operator takes its owner for a server.
type Workload struct {
	// Server is true for a server certificate, false for a client certificate.
	Server        bool
	CommonName    string
	Organizations []string
	DNS           []string
	IP            []netip.Addr
	URI           []*url.URL
	TTL           time.Duration
}

// SignWorkload issues a certificate for a key, which keys.ParseWorkload accepts. reserved has the names of shard servers, which
// are rejected: clients trust the same authority, and would take the workload for a server.
func (a *Authority) SignWorkload(w Workload, key crypto.PublicKey, reserved []string) (*x509.Certificate, error) {
	if err := w.check(reserved); err != nil {
		return nil, fmt.Errorf("issue a certificate for %q: %w", w.CommonName, err)
	}
	template, err := newTemplate(w.TTL)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: w.CommonName, Organization: w.Organizations}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if w.Server {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	template.DNSNames, template.URIs = w.DNS, w.URI
	// The value is an ASN.1 NULL.
	template.ExtraExtensions = []pkix.Extension{{Id: identifier.WorkloadOID, Value: asn1.NullBytes}}
	for _, address := range w.IP {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.Unmap().AsSlice()))
	}
	return a.sign(template, key)
}

func (w *Workload) check(reserved []string) error {
	if w.CommonName == "" {
		return fmt.Errorf("it has no common name")
	}
	isReserved := func(name string) bool {
		return slices.ContainsFunc(reserved, func(r string) bool { return strings.EqualFold(strings.TrimSuffix(name, "."), r) })
	}
	for _, name := range w.DNS {
		if isReserved(name) {
			return fmt.Errorf("the name %q is that of a shard server", name)
		}
	}
	for _, address := range w.IP {
		if isReserved(address.Unmap().String()) {
			return fmt.Errorf("the address %s is that of a shard server", address)
		}
	}
	for _, uri := range w.URI {
		if strings.EqualFold(uri.Scheme, identifier.ServerScheme) {
			return fmt.Errorf("the URI %q is that of a shard server", uri)
		}
	}
	return nil
}

// certificateBlock is the type of the PEM block of a certificate.
const certificateBlock = "CERTIFICATE"

// EncodeCertificate returns a certificate as PEM.
func EncodeCertificate(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: certificate.Raw})
}

// ParseCertificate decodes a certificate that EncodeCertificate encoded.
func ParseCertificate(certPEM []byte) (*x509.Certificate, error) {
	der, err := keys.DecodeBlock(certPEM, certificateBlock)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
