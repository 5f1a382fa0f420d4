// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
)

// ParseWorkload decodes the public key of software on a machine, PKIX, as PEM or as base64 of the
// DER. Another program may have created it, so it may be Ed25519, ECDSA with a curve of NIST from
// P-256, or RSA with 2048 to 8192 bits: what the TLS of Go and Kubernetes accepts
// (https://pkg.go.dev/crypto/x509#CreateCertificate).
func ParseWorkload(data []byte) (crypto.PublicKey, error) {
	var der []byte
	var err error
	if bytes.Contains(data, []byte("-----BEGIN")) {
		der, err = DecodeBlock(data, publicKeyBlock)
	} else if der, err = base64.StdEncoding.AppendDecode(nil, bytes.TrimSpace(data)); err != nil {
		err = errors.New("the public key is neither PEM nor base64")
	}
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, errors.New("the public key is not PKIX")
	}
	switch key := parsed.(type) {
	case ed25519.PublicKey:
		return key, nil
	case *ecdsa.PublicKey:
		if bits := key.Curve.Params().BitSize; bits < 256 {
			return nil, fmt.Errorf("the ECDSA key has the curve %s, needs to be P-256, P-384 or P-521", key.Curve.Params().Name)
		}
		return key, nil
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSA || bits > maxRSA {
			return nil, fmt.Errorf("the RSA key has %d bits, needs to have %d to %d", bits, minRSA, maxRSA)
		}
		return key, nil
	default:
		return nil, fmt.Errorf("the public key is %T, needs to be Ed25519, ECDSA or RSA", parsed)
	}
}

// minRSA and maxRSA are the limits for the bits of an RSA key. TLS of Go verifies no larger ones
// (https://pkg.go.dev/crypto/tls).
const (
	minRSA = 2048
	maxRSA = 8192
)
