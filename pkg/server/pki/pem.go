// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// Types of PEM blocks.
const (
	certificateBlock = "CERTIFICATE"
	privateKeyBlock  = "PRIVATE KEY"
	publicKeyBlock   = "PUBLIC KEY"
)

// EncodeCertificate returns a certificate as PEM.
func EncodeCertificate(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: certificate.Raw})
}

// EncodePrivateKey returns a private key as PKCS #8 in PEM.
func EncodePrivateKey(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateKeyBlock, Bytes: der}), nil
}

// ParsePrivateKey decodes a private key that EncodePrivateKey encoded. The error
// never contains a part of the key.
func ParsePrivateKey(keyPEM []byte) (ed25519.PrivateKey, error) {
	der, err := decode(keyPEM, privateKeyBlock)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("the private key is not PKCS #8")
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the private key is %T, needs to be Ed25519", parsed)
	}
	return key, nil
}

// EncodePublicKey returns a public key as PKIX in PEM.
func EncodePublicKey(key ed25519.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicKeyBlock, Bytes: der}), nil
}

// ParsePublicKey decodes a public key that EncodePublicKey encoded.
func ParsePublicKey(keyPEM []byte) (ed25519.PublicKey, error) {
	der, err := decode(keyPEM, publicKeyBlock)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("parse the public key: %w", err)
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("the public key is %T, needs to be Ed25519", parsed)
	}
	return key, nil
}

func parseCertificate(certPEM []byte) (*x509.Certificate, error) {
	der, err := decode(certPEM, certificateBlock)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// decode returns the content of the first PEM block, which must have a type.
func decode(data []byte, blockType string) ([]byte, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("no PEM block found, needs one of type %q", blockType)
	}
	if block.Type != blockType {
		return nil, fmt.Errorf("found a PEM block of type %q, needs to be %q", block.Type, blockType)
	}
	return block.Bytes, nil
}
