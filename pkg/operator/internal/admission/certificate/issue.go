// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"slices"
	"time"

	"nstance.dev/operator/pkg/base/keys"
)

const (
	// authorityLifetime is long, since a new authority must be written to the
	// configuration before it can be used.
	authorityLifetime = 10 * 365 * 24 * time.Hour
	// servingLifetime is short, since renewal is automatic.
	servingLifetime = 90 * 24 * time.Hour
	// clockSkew is how far notBefore is in the past, so that an API server whose
	// clock is slightly behind accepts a certificate that was just issued.
	clockSkew = 5 * time.Minute

	authorityName = "nstance-operator-webhook-ca"
	servingName   = "nstance-operator-webhook"
)

// renew replaces the parts that the decision names.
func renew(now time.Time, have material, decided decision, hosts []string) (material, error) {
	var err error
	if decided.authority {
		authority, key, err := newAuthority(now)
		if err != nil {
			return have, err
		}
		have.key = key
		have.authorities = slices.Insert(slices.Clone(have.authorities), 0, authority)
		if len(have.authorities) > maxAuthorities {
			have.authorities = have.authorities[:maxAuthorities]
		}
	}
	if decided.serving || !have.serves(now, hosts) {
		have.serving, have.servingKey, err = newServing(now, hosts, have.newest(), have.key)
	}
	return have, err
}

func newAuthority(now time.Time) (*x509.Certificate, crypto.Signer, error) {
	template := newTemplate(now, authorityName, authorityLifetime)
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.IsCA = true
	// It signs leaf certificates only.
	template.MaxPathLenZero = true
	return sign(template, nil, nil)
}

func newServing(now time.Time, hosts []string, authority *x509.Certificate, authorityKey crypto.Signer) (*x509.Certificate, crypto.Signer, error) {
	template := newTemplate(now, servingName, servingLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	keys.AddAltNames(template, hosts)
	return sign(template, authority, authorityKey)
}

func newTemplate(now time.Time, name string, lifetime time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(lifetime),
		BasicConstraintsValid: true,
	}
}

// sign issues a certificate for a new key. Without an authority it is self-signed.
func sign(template, authority *x509.Certificate, authorityKey crypto.Signer) (*x509.Certificate, crypto.Signer, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the key of %s: %w", name, err)
	}
	if authority == nil {
		authority, authorityKey = template, key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("generate the serial number of %s: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), authorityKey)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parse the certificate of %s: %w", name, err)
	}
	return certificate, key, nil
}
