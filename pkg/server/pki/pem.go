// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/x509"
	"encoding/pem"

	"nstance.dev/operator/pkg/base/keys"
)

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
