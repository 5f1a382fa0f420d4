// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"time"

	"nstance.dev/operator/pkg/base/authorities"
)

// authoritySet is the state of an Authority. It never changes.
type authoritySet struct {
	// signers are all accepted authorities. The first issues.
	signers []signer
	pool    *x509.CertPool
	// pem has the certificates in the order of signers.
	pem []byte
}

func newAuthoritySet(signers ...signer) *authoritySet {
	a := &authoritySet{signers: signers, pool: x509.NewCertPool()}
	for _, s := range signers {
		a.pool.AddCert(s.certificate)
		a.pem = append(a.pem, EncodeCertificate(s.certificate)...)
	}
	return a
}

// NewNextAuthority creates an authority with a new Ed25519 key that can replace another one of
// the cluster. Its subject has a serial number beside the common name, so that peers can
// distinguish the authorities of a cluster by their names. It stores nothing.
func NewNextAuthority(commonName string) (*Authority, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the next key of authority %q: %w", commonName, err)
	}
	sum := sha256.Sum256(public)
	return newAuthorityNamed(pkix.Name{CommonName: commonName, SerialNumber: hex.EncodeToString(sum[:8])}, key)
}

// Join returns an authority that issues with the key of the first authority, and accepts the
// certificates of all.
func Join(issuing *Authority, others ...*Authority) *Authority {
	signers := []signer{issuing.issuing()}
	for _, other := range others {
		signers = append(signers, other.issuing())
	}
	joined := &Authority{}
	joined.current.Store(newAuthoritySet(signers...))
	return joined
}

// Set makes the authority the same as another one. It reports whether it was different.
func (a *Authority) Set(other *Authority) (changed bool) {
	next := other.current.Load()
	return !bytes.Equal(a.current.Swap(next).pem, next.pem)
}

// Fingerprints identifies the accepted authorities. The first issues.
func (a *Authority) Fingerprints() []string {
	signers := a.current.Load().signers
	fingerprints := make([]string, 0, len(signers))
	for _, s := range signers {
		fingerprints = append(fingerprints, authorities.Fingerprint(s.certificate))
	}
	return fingerprints
}

// Issuer returns the fingerprint of the accepted authority that has issued a certificate, "" if
// there is none.
func (a *Authority) Issuer(certificate *x509.Certificate) string {
	for _, s := range a.current.Load().signers {
		if certificate.CheckSignatureFrom(s.certificate) == nil {
			return authorities.Fingerprint(s.certificate)
		}
	}
	return ""
}

// Trust is what the client of a registration has said and shown of the authorities.
type Trust struct {
	// Issuer is the fingerprint of the authority of the client's certificate.
	Issuer string `json:"issuer"`
	// Authorities are the fingerprints of the authorities that the client trusts.
	Authorities []string `json:"authorities,omitempty"`
}

// maxTrusted limits the fingerprints of a Trust: a replacement has two authorities.
const maxTrusted = 8

// fingerprintForm is the form of fingerprints (docs/protocol.md#authorities).
var fingerprintForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Trust describes a client with a certificate that trusts authorities, by their fingerprints. It has
// also authorities that are not accepted: the server may not have loaded the next one yet, and the
// client does not repeat what it trusts before its next renewal. Trust is nil if the client does not
// say which authorities it trusts.
func (a *Authority) Trust(certificate *x509.Certificate, trusted []string) *Trust {
	if len(trusted) == 0 {
		return nil
	}
	t := &Trust{Issuer: a.Issuer(certificate)}
	for _, fingerprint := range trusted {
		if len(t.Authorities) < maxTrusted && fingerprintForm.MatchString(fingerprint) && !slices.Contains(t.Authorities, fingerprint) {
			t.Authorities = append(t.Authorities, fingerprint)
		}
	}
	return t
}

// Accepts reports whether a certificate is the certificate of an accepted authority.
func (a *Authority) Accepts(authority *x509.Certificate) bool {
	return slices.ContainsFunc(a.current.Load().signers, func(s signer) bool { return s.certificate.Equal(authority) })
}

// VerifyExpired returns the client of a certificate, PEM, of an accepted authority. The certificate
// may have expired; all else that a handshake verifies is verified.
func (a *Authority) VerifyExpired(certificatePEM []byte) (Client, *x509.Certificate, error) {
	certificate, err := ParseCertificate(certificatePEM)
	if err != nil {
		return Client{}, nil, err
	}
	now := time.Now()
	if now.After(certificate.NotAfter) {
		now = certificate.NotAfter
	}
	_, err = certificate.Verify(x509.VerifyOptions{
		Roots: a.current.Load().pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return Client{}, nil, fmt.Errorf("verify the client certificate: %w", err)
	}
	client, err := PeerClient(certificate)
	return client, certificate, err
}

// KeySeeds returns the 32 bytes that each private key of the authority is derived from.
func (a *Authority) KeySeeds() [][]byte {
	var seeds [][]byte
	for _, s := range a.current.Load().signers {
		seeds = append(seeds, s.key.Seed())
	}
	return seeds
}
