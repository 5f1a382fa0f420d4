// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/base/keys"
)

// Keys of the Secret, in addition to the keys of a TLS Secret.
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
	// serving and servingKey are the serving certificate and its key; either both or neither
	// are set.
	key crypto.Signer
	// serving and servingKey are the serving certificate and its key; both are set or nil.
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
	// X509KeyPair also checks that key and certificate match
	// (https://pkg.go.dev/crypto/tls#X509KeyPair).
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

// newest returns the authority that signs, nil if there is no authority.
func (m material) newest() *x509.Certificate {
	if len(m.authorities) == 0 {
		return nil
	}
	return m.authorities[0]
}

// bundle returns the trusted authorities in PEM, the newest first.
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
		// Verify requires the usage of TLS servers by default
		// (https://pkg.go.dev/crypto/x509#VerifyOptions).
		if _, err := m.serving.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: host}); err != nil {
			return false
		}
	}
	return true
}

// data returns the data to store in the Secret, in PEM.
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
	// The authority signs leaf certificates only.
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

// sign issues a certificate for a new key. It is self-signed if authority is nil.
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

// hostsOf returns the sorted host names and addresses at which the API server calls the
// webhooks of a configuration, and more. A Service has the host name.namespace.svc
// (https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/).
func hostsOf(configuration *admissionregistrationv1.ValidatingWebhookConfiguration, more []string) ([]string, error) {
	hosts := slices.Clone(more)
	for _, webhook := range configuration.Webhooks {
		if service := webhook.ClientConfig.Service; service != nil {
			hosts = append(hosts, service.Name+"."+service.Namespace+".svc")
			continue
		}
		address, err := url.Parse(ptr.Deref(webhook.ClientConfig.URL, ""))
		if err != nil || address.Hostname() == "" {
			return nil, fmt.Errorf("webhook %s of configuration %s has neither a service nor a URL with a host", webhook.Name, configuration.Name)
		}
		hosts = append(hosts, address.Hostname())
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}
