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

	"nstance.dev/operator/pkg/server/pki"
)

// Files of an identity.
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

// loadIdentity returns the TLS configuration of calls to operators' services.
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
	// A callback presents the certificate whatever authorities the server names:
	// its refusal tells more than that of an anonymous handshake would.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	return config, nil
}

// trust returns the TLS configuration of calls to servers of an authority.
func trust(caPEM []byte) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(caPEM) {
		return nil, errors.New("no PEM certificate found")
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}, nil
}

// ensureKey returns the key of the identity in folder, and makes it when it is
// missing.
func ensureKey(folder string) (ed25519.PrivateKey, error) {
	path := filepath.Join(folder, keyFile)
	data, err := os.ReadFile(path)
	if err == nil {
		key, err := pki.ParsePrivateKey(data)
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
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	if data, err = pki.EncodePrivateKey(key); err != nil {
		return nil, fmt.Errorf("encoding the key: %w", err)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	return key, writeFile(path, data)
}

// writeFile makes or replaces a file, in one step, that only its owner may read.
func writeFile(path string, data []byte) error {
	// CreateTemp gives the file no other rights.
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
