// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package keyfiles creates key pairs when the server requests them, and sends their public
// keys. The private keys stay on the machine.
package keyfiles

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"nstance.dev/operator/pkg/agent/atomicfile"
	"nstance.dev/operator/pkg/agent/names"
	"nstance.dev/operator/pkg/base/keys"
)

// Extensions of the files of a key pair.
const (
	privateExtension = ".key"
	publicExtension  = ".pub"
)

// Store is the folder of the keys.
type Store struct {
	folder string
	mode   fs.FileMode
}

// Open returns the store in a folder, which it creates if there is none.
func Open(folder string, mode fs.FileMode) (*Store, error) {
	if err := atomicfile.MakeFolder(folder, mode); err != nil {
		return nil, err
	}
	if err := atomicfile.RemoveTemporary(folder); err != nil {
		return nil, err
	}
	return &Store{folder: folder, mode: mode}, nil
}

// PublicKey returns the public key of a name, PKIX in base64 without PEM armour, as servers
// expect it. It creates the key pair if there is none; what is missing of a pair is made of
// its private key.
func (s *Store) PublicKey(name string) ([]byte, error) {
	if err := names.ValidateBase(name); err != nil {
		return nil, err
	}
	private, err := s.private(name)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", name, err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, fmt.Errorf("key %s: encode the public key: %w", name, err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	path := filepath.Join(s.folder, name+publicExtension)
	if present, err := os.ReadFile(path); err != nil || string(present) != string(publicPEM) {
		if err := atomicfile.Write(path, publicPEM, s.mode); err != nil {
			return nil, fmt.Errorf("key %s: %w", name, err)
		}
	}
	return []byte(base64.StdEncoding.EncodeToString(der)), nil
}

// private returns the private key of a name, and creates it if there is none.
func (s *Store) private(name string) (crypto.Signer, error) {
	path := filepath.Join(s.folder, name+privateExtension)
	data, err := os.ReadFile(path)
	if err == nil {
		return parse(data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create it: %w", err)
	}
	if data, err = keys.EncodePrivate(key); err != nil {
		return nil, fmt.Errorf("encode it: %w", err)
	}
	return key, atomicfile.Write(path, data, s.mode)
}

// parse reads a private key of any type, which may be that of another program. The error
// contains nothing of it.
func parse(data []byte) (crypto.Signer, error) {
	der, err := keys.DecodeBlock(data, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("the private key is not PKCS #8")
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the private key is %T, which cannot sign", parsed)
	}
	return signer, nil
}
