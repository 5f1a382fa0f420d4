// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

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

// The files of an identity.
const (
	authorityFile   = "ca.crt"
	certificateFile = "identity.crt"
	keyFile         = "identity.key"
)

const (
	identityFlag  = "identity-dir"
	identityUsage = "folder with ca.crt, identity.crt and identity.key; environment variable " + identityEnv
	identityEnv   = "NSTANCE_ADMIN_IDENTITY_DIR"
)

// loadIdentity returns the TLS configuration for calls of the OperatorService.
func loadIdentity(folder string) (*tls.Config, error) {
	caPEM, err := os.ReadFile(filepath.Join(folder, authorityFile))
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", identityFlag, err)
	}
	config, err := trust(caPEM)
	if err != nil {
		return nil, fmt.Errorf("--%s: %s: %w", identityFlag, filepath.Join(folder, authorityFile), err)
	}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(folder, certificateFile), filepath.Join(folder, keyFile))
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", identityFlag, err)
	}
	// With a callback, the certificate is sent even if the server does not list its
	// authority. The error of the server is then more specific.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	return config, nil
}

// trust returns the TLS configuration that trusts servers of an authority, but no workloads.
func trust(caPEM []byte) (*tls.Config, error) {
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

// ensureKey returns the key of the identity in folder. It creates a missing key.
func ensureKey(folder string) (ed25519.PrivateKey, error) {
	path := filepath.Join(folder, keyFile)
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
	return key, writeFile(path, data)
}

// writeCertificate writes the certificates of an identity and of its authority. ensureKey
// has written the key.
func writeCertificate(folder string, caPEM, certPEM []byte) error {
	err := errors.Join(
		writeFile(filepath.Join(folder, authorityFile), caPEM),
		writeFile(filepath.Join(folder, certificateFile), certPEM),
	)
	if err != nil {
		return fmt.Errorf("--%s: %w", identityFlag, err)
	}
	return nil
}

// writeFile atomically creates or replaces a file that only its owner may read.
func writeFile(path string, data []byte) error {
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
