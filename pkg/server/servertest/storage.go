// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage/file"
)

// encryptionKey encrypts the secrets of all servers of this package.
var encryptionKey = bytes.Repeat([]byte("0123"), 8)

// openStorage opens the server's storage and creates the keys of the cluster in it
// if they are missing.
func (s *Server) openStorage() {
	s.t.Helper()
	ctx := context.Background()
	require.NoError(s.t, os.MkdirAll(s.Bucket(), 0o700))
	store, err := file.Open(s.Bucket())
	require.NoError(s.t, err)
	s.Storage = store
	s.Secrets, err = secrets.New(store, encryptionKey)
	require.NoError(s.t, err)
	s.writeFile(s.encryptionKeyPath(), encryptionKey)
	if s.Authority != nil {
		s.storeAuthority(ctx)
	}
	made, err := clusterkeys.Ensure(ctx, store, s.Secrets, s.options.cluster())
	require.NoError(s.t, err)
	s.Authority = made.Authority
}

// storeAuthority stores the authority of another server as that of the cluster.
func (s *Server) storeAuthority(ctx context.Context) {
	s.t.Helper()
	require.NoError(s.t, clusterkeys.Import(ctx, s.Storage, s.Secrets, s.Authority))
}

// Bucket is the folder of the storage.
func (s *Server) Bucket() string { return filepath.Join(s.DataDir, "bucket") }

func (s *Server) encryptionKeyPath() string { return filepath.Join(s.DataDir, "encryption.key") }

// ReadFile returns the content of an object of the storage.
func (s *Server) ReadFile(key string) []byte {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.Bucket(), filepath.FromSlash(key)))
	require.NoError(s.t, err)
	return data
}
