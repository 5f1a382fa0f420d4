// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

// lifetime is longer than any cluster of this package.
const lifetime = 30 * 24 * time.Hour

// authority is the CA of Kubernetes, or another CA of the control plane. An administrator creates them before
// the cluster, so that machines which boot at the same time trust each other, and keeps their keys.
type authority struct {
	dir, name   string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority creates the CA whose common name is name, in the files file.crt and file.key of a folder.
func newAuthority(dir, name, file string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create the key of CA %s: %w", name, err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(lifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		DNSNames:              []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create CA %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read CA %s: %w", name, err)
	}
	a := &authority{dir: dir, name: file, certificate: certificate, key: key}
	encoded, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return a, errors.Join(writeFile(a.certificateFile(), a.certificatePEM()), writeFile(a.keyFile(), encoded))
}

func (a *authority) certificateFile() string { return filepath.Join(a.dir, a.name+".crt") }
func (a *authority) keyFile() string         { return filepath.Join(a.dir, a.name+".key") }

func (a *authority) certificatePEM() []byte { return certificatePEM(a.certificate.Raw) }

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// issue signs a certificate for a new key.
func (a *authority) issue(template *x509.Certificate) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create the key of %s: %w", template.Subject, err)
	}
	template.NotBefore, template.NotAfter = a.certificate.NotBefore, a.certificate.NotAfter
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject, err)
	}
	key, err = keyPEM(private)
	return certificatePEM(der), key, err
}

// administrator returns the configuration of a client that may do everything, also before the API server
// runs.
func (a *authority) administrator(address string) (*rest.Config, error) {
	certificate, key, err := a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "administrator", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: "https://" + address, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.certificatePEM(), CertData: certificate, KeyData: key},
	}, nil
}
