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
	"net"
	"slices"
	"time"
)

const (
	// authorityLife is long: a new authority has to be told to the API server.
	authorityLife = 10 * 365 * 24 * time.Hour
	// servingLife is short: a new certificate costs nothing.
	servingLife = 90 * 24 * time.Hour
	// clockSkew is how far notBefore lies in the past, so that an API server whose
	// clock is a little behind accepts a certificate that was just made.
	clockSkew = 5 * time.Minute

	authorityName = "nstance-operator-webhook-ca"
	servingName   = "nstance-operator-webhook"
)

// renew makes what was decided on.
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
	template := newTemplate(now, authorityName, authorityLife)
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.IsCA = true
	// It signs serving certificates alone.
	template.MaxPathLenZero = true
	return sign(template, nil, nil)
}

func newServing(now time.Time, hosts []string, authority *x509.Certificate, authorityKey crypto.Signer) (*x509.Certificate, crypto.Signer, error) {
	template := newTemplate(now, servingName, servingLife)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return sign(template, authority, authorityKey)
}

func newTemplate(now time.Time, name string, life time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(life),
		BasicConstraintsValid: true,
	}
}

// sign makes a certificate for a new key. Without an authority it signs itself.
func sign(template, authority *x509.Certificate, authorityKey crypto.Signer) (*x509.Certificate, crypto.Signer, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	if authority == nil {
		authority, authorityKey = template, key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("choose the serial number of %s: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), authorityKey)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read the certificate of %s: %w", name, err)
	}
	return certificate, key, nil
}
