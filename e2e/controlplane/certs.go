// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"path/filepath"
	"time"
)

// certificateLifetime is longer than any cluster that this package starts.
const certificateLifetime = 365 * 24 * time.Hour

// authority is the cluster's certificate authority. It signs the API server's
// and the webhooks' serving certificates and the components' client
// certificates. Its key leaves the program only for the controller manager that signs the
// certificates of kubelets.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority creates a certificate authority with its files below dir.
func newAuthority(dir string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "nstance-devcluster"},
		NotBefore:             time.Now().Add(-time.Hour), // for processes whose clock is behind
		NotAfter:              time.Now().Add(certificateLifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the cluster's certificate authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the cluster's certificate authority: %w", err)
	}
	a := &authority{dir: dir, certificate: certificate, key: key}
	return a, replaceFile(a.caFile(), a.caPEM())
}

func (a *authority) caFile() string { return filepath.Join(a.dir, "ca.crt") }

func (a *authority) caPEM() []byte { return certificatePEM(a.certificate.Raw) }

// serving writes tls.crt and tls.key for a server on this machine, which others reach at
// addresses too, to a folder of its own, which it returns.
func (a *authority) serving(name string, addresses ...net.IP) (string, error) {
	certPEM, keyPEM, err := a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: append([]net.IP{net.IPv4(127, 0, 0, 1)}, addresses...),
	})
	if err != nil {
		return "", fmt.Errorf("issuing the serving certificate of %s: %w", name, err)
	}
	folder := filepath.Join(a.dir, name)
	if err := replaceFile(filepath.Join(folder, "tls.crt"), certPEM); err != nil {
		return "", err
	}
	return folder, replaceFile(filepath.Join(folder, "tls.key"), keyPEM)
}

// client issues a certificate by which the API server authenticates the user and groups.
func (a *authority) client(user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	certPEM, keyPEM, err = a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("issuing the client certificate of %s: %w", user, err)
	}
	return certPEM, keyPEM, nil
}

// issue completes the template and signs it for a new key.
func (a *authority) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.NotBefore = a.certificate.NotBefore
	template.NotAfter = a.certificate.NotAfter
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = privateKeyPEM(key)
	return certificatePEM(der), keyPEM, err
}

// serviceAccountKeys writes the pair that signs and verifies ServiceAccount
// tokens and returns the two files.
func (a *authority) serviceAccountKeys() (private, public string, err error) {
	key, err := newKey()
	if err != nil {
		return "", "", err
	}
	privatePEM, err := privateKeyPEM(key)
	if err != nil {
		return "", "", err
	}
	publicDER, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", err
	}
	private, public = a.serviceAccountKeyFile(), filepath.Join(a.dir, "service-account.pub")
	if err := replaceFile(private, privatePEM); err != nil {
		return "", "", err
	}
	return private, public, replaceFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER}))
}

func (a *authority) serviceAccountKeyFile() string {
	return filepath.Join(a.dir, "service-account.key")
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	return key, nil
}

func privateKeyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
