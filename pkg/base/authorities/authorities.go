// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package authorities has what clients of the shard servers need to know of the certificate
// authorities of a cluster: a client trusts several while the CA is replaced, and learns from a
// handshake that it is (docs/runbooks/rotate-the-ca.md#rotate-the-ca).
package authorities

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// Parse returns the certificates of authorities, PEM, at least one.
func Parse(caPEM []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	for block, rest := pem.Decode(caPEM); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse the certificate of an authority: %w", err)
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return certificates, nil
}

// Fingerprint identifies the certificate of an authority: it is the SHA-256 hash of its DER form
// in hexadecimal digits, as openssl x509 -fingerprint -sha256 prints it, without colons and in
// lower case.
func Fingerprint(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

// Fingerprints returns the fingerprints of the authorities, PEM, none if they cannot be read.
func Fingerprints(caPEM []byte) []string {
	certificates, err := Parse(caPEM)
	if err != nil {
		return nil
	}
	fingerprints := make([]string, 0, len(certificates))
	for _, certificate := range certificates {
		fingerprints = append(fingerprints, Fingerprint(certificate))
	}
	return fingerprints
}

// Verify returns an error unless one of the authorities, PEM, has issued a client certificate.
func Verify(leaf *x509.Certificate, caPEM []byte) error {
	certificates, err := Parse(caPEM)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	for _, certificate := range certificates {
		pool.AddCert(certificate)
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: pool, CurrentTime: leaf.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// Handshake is what a server has shown of its authorities. They are subjects, in DER.
type Handshake struct {
	// accepted are the authorities that the server accepts
	// (https://www.rfc-editor.org/rfc/rfc8446#section-4.3.2), sorted, and issuer is the authority
	// of its certificate.
	accepted []string
	issuer   string
}

// NewHandshake describes a handshake in which the server requested a certificate of one of the
// acceptable authorities, as tls.CertificateRequestInfo has them.
func NewHandshake(state tls.ConnectionState, acceptable [][]byte) Handshake {
	var h Handshake
	for _, subject := range acceptable {
		h.accepted = append(h.accepted, string(subject))
	}
	slices.Sort(h.accepted)
	if len(state.VerifiedChains) > 0 {
		chain := state.VerifiedChains[0]
		h.issuer = string(chain[len(chain)-1].RawSubject)
	}
	return h
}

// Outdated reports whether the server accepts other authorities than a client trusts, or has a
// certificate of another authority than the client's certificate: then the CA of the cluster is
// being replaced. It is false if the server does not show its authorities.
func (h Handshake) Outdated(trusted []*x509.Certificate, leaf *x509.Certificate) bool {
	if h.issuer == "" || len(h.accepted) == 0 {
		return false
	}
	var own []string
	for _, certificate := range trusted {
		own = append(own, string(certificate.RawSubject))
	}
	slices.Sort(own)
	return !slices.Equal(slices.Compact(own), slices.Compact(slices.Clone(h.accepted))) || string(leaf.RawIssuer) != h.issuer
}
