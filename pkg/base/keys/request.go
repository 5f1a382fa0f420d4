// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
)

// Request is the part of a registration or a renewal about the key of the certificate
// (docs/protocol.md#extensions).
type Request struct {
	// PublicKeyPEM is the public key, PKIX.
	PublicKeyPEM []byte
	// CertificateRequest proves that the client has the private key: PKCS #10, DER. Its subject is
	// empty, because the server decides on the names. Servers of older versions ignore it.
	CertificateRequest []byte
	// TrustedAuthorities are the fingerprints of the authorities that the client trusts, see
	// authorities.Fingerprint. It is empty if the client does not say so.
	TrustedAuthorities []string
}

// Issued is the response to a Request.
type Issued struct {
	// CertificatePEM is the client certificate.
	CertificatePEM []byte
	// AuthoritiesPEM are the certificates of the authorities that the client trusts from now on,
	// PEM. The first has issued the certificate. It is empty if the server does not say so.
	AuthoritiesPEM []byte
}

// NewRequest returns the request of the owner of a key.
func NewRequest(key ed25519.PrivateKey) (Request, error) {
	publicKeyPEM, err := EncodePublic(key.Public().(ed25519.PublicKey))
	if err != nil {
		return Request{}, fmt.Errorf("encode the public key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return Request{}, fmt.Errorf("sign a certificate request: %w", err)
	}
	return Request{PublicKeyPEM: publicKeyPEM, CertificateRequest: der}, nil
}

// Check returns an error unless the certificate request is signed with the public key. A request
// of an older client has none, which is no error.
func (r Request) Check() error {
	if len(r.CertificateRequest) == 0 {
		return nil
	}
	key, err := ParsePublic(r.PublicKeyPEM)
	if err != nil {
		return fmt.Errorf("public_key_pem: %w", err)
	}
	request, err := x509.ParseCertificateRequest(r.CertificateRequest)
	if err != nil {
		return fmt.Errorf("certificate_request: must be PKCS #10, DER: %w", err)
	}
	if !key.Equal(request.PublicKey) {
		return errors.New("certificate_request: it is for another key than public_key_pem")
	}
	if err := request.CheckSignature(); err != nil {
		return fmt.Errorf("certificate_request: %w", err)
	}
	return nil
}
