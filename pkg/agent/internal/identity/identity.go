// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package identity keeps the identity of an agent in a folder (docs/agent.md#files): the
// CA, the registration nonce, the key, the certificate and the hash of the applied
// configuration. It registers the instance, connects to the server with the certificate,
// and renews it.
package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/golang-jwt/jwt/v5"

	"nstance.dev/operator/pkg/agent/internal/atomicfile"
	"nstance.dev/operator/pkg/base/authorities"
)

// Names of the files.
const (
	caFile          = "ca.crt"
	unconfirmedFile = "ca.unconfirmed"
	nonceFile       = "nonce.jwt"
	keyFile         = "identity.key"
	nextKeyFile     = "identity.next.key"
	publicKeyFile   = "identity.pub"
	certificateFile = "identity.crt"
	configHashFile  = "config.hash"
	readyFile       = "ready"
)

// maxFileBytes is the maximum size of a file of the folder.
const maxFileBytes = 1 << 20

// Identity is the folder of one instance. It is safe for concurrent use.
type Identity struct {
	folder     string
	mode       fs.FileMode
	instanceID string
	// mu guards the key and the certificate, which belong together, and the fields below.
	mu sync.Mutex
	// last is what the last server that requested the certificate has shown.
	last authorities.Handshake
	// ServerURI is the URI that certificates of servers must have, "" if they need none. It must
	// be set before the first connection.
	ServerURI string
}

// Open returns the identity in a folder. It creates a missing folder. All files get the
// mode, including files that userdata has written.
func Open(folder string, mode fs.FileMode, instanceID string) (*Identity, error) {
	if err := atomicfile.MakeFolder(folder, mode); err != nil {
		return nil, err
	}
	if err := atomicfile.RemoveTemporary(folder); err != nil {
		return nil, err
	}
	i := &Identity{folder: folder, mode: mode, instanceID: instanceID}
	for _, name := range []string{caFile, unconfirmedFile, nonceFile, keyFile, nextKeyFile, publicKeyFile, certificateFile, configHashFile, readyFile} {
		if err := os.Chmod(i.path(name), mode.Perm()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("set the mode of the identity: %w", err)
		}
	}
	return i, i.finishReplacement()
}

// InstanceID returns the id of the instance, which every certificate must have.
func (i *Identity) InstanceID() string { return i.instanceID }

// CA returns the authorities that verify the certificates of servers.
func (i *Identity) CA() (*x509.CertPool, error) {
	data, err := i.read(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("read %s: no PEM certificate found", i.path(caFile))
	}
	return pool, nil
}

// Nonce returns the registration nonce, "" if the file is missing.
func (i *Identity) Nonce() (string, error) {
	return i.readOptional(nonceFile)
}

// RemoveNonce removes the nonce, which may be missing.
func (i *Identity) RemoveNonce() error {
	if err := atomicfile.Remove(i.path(nonceFile)); err != nil {
		return fmt.Errorf("remove the nonce: %w", err)
	}
	return nil
}

// ConfigHash returns the hash of the configuration that was applied last, "" before the
// first.
func (i *Identity) ConfigHash() (string, error) {
	return i.readOptional(configHashFile)
}

// SetConfigHash stores the hash of the configuration that was applied last.
func (i *Identity) SetConfigHash(hash string) error {
	return i.write(configHashFile, []byte(hash))
}

// WasReady reports whether SetReady was called once.
func (i *Identity) WasReady() (bool, error) {
	_, err := os.Stat(i.path(readyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// SetReady stores that the machine of the instance has been ready.
func (i *Identity) SetReady() error { return i.write(readyFile, nil) }

// SeedConfigHash stores the hash in a nonce unless a hash is stored.
func (i *Identity) SeedConfigHash(nonce string) error {
	present, err := i.ConfigHash()
	if err != nil || present != "" {
		return err
	}
	hash, err := configHash(nonce)
	if err != nil || hash == "" {
		return err
	}
	return i.SetConfigHash(hash)
}

func (i *Identity) path(name string) string {
	return filepath.Join(i.folder, name)
}

func (i *Identity) write(name string, data []byte) error {
	return atomicfile.Write(i.path(name), data, i.mode)
}

// readOptional returns the content of a text file without spaces around it, "" if it is
// missing.
func (i *Identity) readOptional(name string) (string, error) {
	data, err := i.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

func (i *Identity) read(name string) ([]byte, error) {
	path := i.path(name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("read %s: it has %d bytes, at most %d are allowed", path, info.Size(), maxFileBytes)
	}
	return os.ReadFile(path)
}

// ErrNonce is returned for a nonce that no server can accept. The message contains no part
// of the nonce.
var ErrNonce = errors.New("the nonce is not a JWT")

// configHash returns the claim config_hash of a nonce, "" if the claim is missing. It does
// not verify the nonce: only the server has the key.
func configHash(nonce string) (string, error) {
	var claims struct {
		jwt.RegisteredClaims
		ConfigHash string `json:"config_hash"`
	}
	if _, _, err := jwt.NewParser().ParseUnverified(nonce, &claims); err != nil {
		return "", ErrNonce
	}
	return claims.ConfigHash, nil
}
