// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package keys encodes the Ed25519 keys of servers and clients as PEM, decodes them, and
// sets the host names of certificates.
package keys

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
)

// Types of PEM blocks.
const (
	privateKeyBlock = "PRIVATE KEY"
	publicKeyBlock  = "PUBLIC KEY"
)

// EncodePrivate returns a private key as PKCS #8 in PEM.
func EncodePrivate(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateKeyBlock, Bytes: der}), nil
}

// ParsePrivate decodes a private key of EncodePrivate. The error never contains a part of
// the key.
func ParsePrivate(keyPEM []byte) (ed25519.PrivateKey, error) {
	der, err := DecodeBlock(keyPEM, privateKeyBlock)
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

// EncodePublic returns a public key as PKIX in PEM.
func EncodePublic(key ed25519.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicKeyBlock, Bytes: der}), nil
}

// ParsePublic decodes a public key of EncodePublic.
func ParsePublic(keyPEM []byte) (ed25519.PublicKey, error) {
	der, err := DecodeBlock(keyPEM, publicKeyBlock)
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

// DecodeBlock returns the content of the first PEM block. Another type is an error.
func DecodeBlock(data []byte, blockType string) ([]byte, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("no PEM block found, needs one of type %q", blockType)
	}
	if block.Type != blockType {
		return nil, fmt.Errorf("found a PEM block of type %q, needs to be %q", block.Type, blockType)
	}
	return block.Bytes, nil
}

// AddAltNames makes a certificate valid for hosts, each an IP address or a DNS name.
func AddAltNames(certificate *x509.Certificate, hosts []string) {
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			certificate.IPAddresses = append(certificate.IPAddresses, ip)
		} else {
			certificate.DNSNames = append(certificate.DNSNames, host)
		}
	}
}

// Audience returns the audience for which a cloud signs the identity of a machine: a registration
// with a nonce, which names the cluster, the shard and the instance, and with a public key. An
// identity that is signed for one registration is of no use for another
// (docs/protocol.md#extensions).
func Audience(nonce string, publicKeyPEM []byte) string {
	hash := sha256.Sum256([]byte(nonce + "\n" + string(publicKeyPEM)))
	return "nstance://registration/" + hex.EncodeToString(hash[:])
}
