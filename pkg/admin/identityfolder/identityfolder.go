// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package identityfolder reads and writes the folder of --identity-dir: the key and certificate of an
// operator, and the certificate of the authority that it trusts.
package identityfolder

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/base/keys"
)

// The files of the folder.
const (
	AuthorityFile   = "ca.crt"
	CertificateFile = "identity.crt"
	KeyFile         = "identity.key"
	// NonceFile has a nonce in place of key and certificate, before the operator has registered.
	NonceFile = "nonce.jwt"
)

// Flag names the folder, with this usage and the default of this environment variable.
const (
	Flag  = "identity-dir"
	Usage = "folder with ca.crt, identity.crt and identity.key; environment variable " + Env
	Env   = "NSTANCE_ADMIN_IDENTITY_DIR"
)

// Load returns the TLS configuration for calls of the OperatorService.
func Load(folder string) (*tls.Config, error) {
	caPEM, err := os.ReadFile(filepath.Join(folder, AuthorityFile))
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", Flag, err)
	}
	config, err := Trust(caPEM)
	if err != nil {
		return nil, fmt.Errorf("--%s: %s: %w", Flag, filepath.Join(folder, AuthorityFile), err)
	}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(folder, CertificateFile), filepath.Join(folder, KeyFile))
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", Flag, err)
	}
	// With a callback, the certificate is sent even if the server does not list its
	// authority. The error of the server is then more specific.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	return config, nil
}

// Trust returns the TLS configuration that trusts servers of an authority, but no workloads.
func Trust(caPEM []byte) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(caPEM) {
		return nil, errors.New("no PEM certificate found")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    roots,
		VerifyConnection: func(state tls.ConnectionState) error {
			return identifier.CheckServer(state.PeerCertificates[0])
		},
	}, nil
}

// EnsureKey returns the key in folder. It creates a missing key.
func EnsureKey(folder string) (ed25519.PrivateKey, error) {
	path := filepath.Join(folder, KeyFile)
	data, err := os.ReadFile(path)
	if err == nil {
		key, err := keys.ParsePrivate(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	if data, err = keys.EncodePrivate(key); err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	return key, WriteFile(path, data)
}

// WriteCertificates writes the certificates of an operator and of the authority. EnsureKey has
// written the key.
func WriteCertificates(folder string, caPEM, certPEM []byte) error {
	err := errors.Join(
		WriteFile(filepath.Join(folder, AuthorityFile), caPEM),
		WriteFile(filepath.Join(folder, CertificateFile), certPEM),
	)
	if err != nil {
		return fmt.Errorf("--%s: %w", Flag, err)
	}
	return nil
}

// WriteFile atomically creates or replaces a file that only its owner may read.
func WriteFile(path string, data []byte) error {
	// CreateTemp creates the file with mode 0600.
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(data)
	if err := errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
