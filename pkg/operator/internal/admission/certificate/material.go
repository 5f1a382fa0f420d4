// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// The keys of the Secret beside those of a TLS Secret.
const (
	// caKey has the authorities to trust, the newest first.
	caKey = "ca.crt"
	// caPrivateKey has the private key of the newest authority.
	caPrivateKey = "ca.key"
)

// maxAuthorities is the maximum number of trusted authorities: two while one
// replaces another, and one more for a key that was lost in the meantime.
const maxAuthorities = 3

// material is the valid content of the Secret.
type material struct {
	// authorities are the trusted authorities, the newest first.
	authorities []*x509.Certificate
	// key is the key of the newest authority.
	key crypto.Signer
	// serving and servingKey are the serving certificate and its key; both or none.
	serving    *x509.Certificate
	servingKey crypto.Signer
}

// readMaterial returns the valid parts of a Secret's data. Missing and invalid
// parts are omitted.
func readMaterial(now time.Time, data map[string][]byte) material {
	var m material
	if authorities, err := cert.ParseCertsPEM(data[caKey]); err == nil {
		for _, authority := range authorities {
			if authority.IsCA && now.Before(authority.NotAfter) && len(m.authorities) < maxAuthorities {
				m.authorities = append(m.authorities, authority)
			}
		}
	}
	if newest := m.newest(); newest != nil {
		m.key = readKey(data[caPrivateKey], newest)
	}
	// X509KeyPair also checks that the key is that of the certificate.
	if pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]); err == nil {
		m.serving = pair.Leaf
		m.servingKey = readKey(data[corev1.TLSPrivateKeyKey], pair.Leaf)
	}
	return m
}

// readKey returns the private key of a certificate, or nil if data is not its key.
func readKey(data []byte, certificate *x509.Certificate) crypto.Signer {
	parsed, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(certificate.PublicKey) {
		return nil
	}
	return key
}

// newest returns the authority that signs, or nil if there is none.
func (m material) newest() *x509.Certificate {
	if len(m.authorities) == 0 {
		return nil
	}
	return m.authorities[0]
}

// bundle returns the trusted authorities, PEM.
func (m material) bundle() ([]byte, error) {
	return cert.EncodeCertificates(m.authorities...)
}

// serves reports whether a client that trusts the authorities and calls one of the
// hosts accepts the serving certificate now.
func (m material) serves(now time.Time, hosts []string) bool {
	if m.serving == nil || m.servingKey == nil {
		return false
	}
	roots := x509.NewCertPool()
	for _, authority := range m.authorities {
		roots.AddCert(authority)
	}
	for _, host := range hosts {
		// Verify checks for the usage of TLS servers by default.
		if _, err := m.serving.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: host}); err != nil {
			return false
		}
	}
	return true
}

// data returns the data of the Secret.
func (m material) data() (map[string][]byte, error) {
	bundle, err := m.bundle()
	if err != nil {
		return nil, fmt.Errorf("encode the authorities: %w", err)
	}
	authorityKey, err := keyutil.MarshalPrivateKeyToPEM(m.key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of the authority: %w", err)
	}
	serving, err := cert.EncodeCertificates(m.serving)
	if err != nil {
		return nil, fmt.Errorf("encode the serving certificate: %w", err)
	}
	servingKey, err := keyutil.MarshalPrivateKeyToPEM(m.servingKey)
	if err != nil {
		return nil, fmt.Errorf("encode the key of the serving certificate: %w", err)
	}
	return map[string][]byte{
		caKey:                   bundle,
		caPrivateKey:            authorityKey,
		corev1.TLSCertKey:       serving,
		corev1.TLSPrivateKeyKey: servingKey,
	}, nil
}
