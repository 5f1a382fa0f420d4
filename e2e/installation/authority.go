// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage/file"
)

// Authority has issued every certificate of the installation. With it a shard
// server that runs elsewhere can join.
func (n *Installation) Authority() *pki.Authority { return n.authority }

// createKeys creates the keys of the cluster, as the first server would: the operator
// is configured with the authority before a server runs.
func (n *Installation) createKeys(ctx context.Context) (*pki.Authority, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	if err := n.writeFile(n.encryptionKeyFile(), []byte(base64.StdEncoding.EncodeToString(key))); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(n.Bucket(), 0o700); err != nil {
		return nil, err
	}
	bucket, err := file.Open(n.Bucket())
	if err != nil {
		return nil, err
	}
	encrypted, err := secrets.New(bucket, key)
	if err != nil {
		return nil, err
	}
	keys, err := clusterkeys.Ensure(ctx, bucket, encrypted, ClusterID)
	if err != nil {
		return nil, err
	}
	return keys.Authority, nil
}

func (n *Installation) encryptionKeyFile() string { return filepath.Join(n.dir, "encryption.key") }
