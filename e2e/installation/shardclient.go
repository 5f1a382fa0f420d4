// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"

	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage/file"
)

// Dial connects to a shard's server with a certificate of the operator's role and
// tenant, to read or change groups without the operator.
func (n *Installation) Dial(shardID string) (*grpc.ClientConn, error) {
	return n.dial(shardID, loopback)
}

// clientID differs from the id of the operator: with that id the servers accept only the
// certificate that the operator has registered.
const clientID = "e2e"

// DialStandby is Dial for the server that StartStandby runs.
func (n *Installation) DialStandby(shardID string) (*grpc.ClientConn, error) {
	return n.dial(shardID, standbyHost)
}

func (n *Installation) dial(shardID, host string) (*grpc.ClientConn, error) {
	shard, err := n.shard(shardID)
	if err != nil {
		return nil, fmt.Errorf("dial a shard: %w", err)
	}
	return Dial(n.authority, shardID, net.JoinHostPort(host, strconv.Itoa(shard.OperatorPort)))
}

// Dial connects to a server of a shard at its address for operators, with a certificate of
// the operator's role and tenant that authority issues.
func Dial(authority *pki.Authority, shardID, address string) (*grpc.ClientConn, error) {
	certPEM, keyPEM, err := authority.IssueClient(
		pki.Client{ID: clientID, Tenant: Tenant, Role: pki.RoleOperator}, certificateLifetime)
	if err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	id := &identity.Identity{}
	if err := id.Set(certPEM, keyPEM, authority.CertificatePEM()); err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(id.Credentials(ClusterID)(shardID)))
	if err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	return connection, nil
}

// Authority has issued every certificate of the installation. With it a shard
// server that runs elsewhere can join.
func (n *Installation) Authority() *pki.Authority { return n.authority }

// ReadAuthority reads the authority from the storage, whose servers have replaced it.
func (n *Installation) ReadAuthority(ctx context.Context) error {
	keys, err := n.readKeys(ctx)
	if err != nil {
		return err
	}
	n.authority = keys.Authority
	return nil
}

// readKeys reads the keys of the cluster, as nstance-admin does.
func (n *Installation) readKeys(ctx context.Context) (*clusterkeys.Keys, error) {
	key, err := secrets.ReadKey(config.KeySource{File: n.EncryptionKeyFile()})
	if err != nil {
		return nil, err
	}
	store, err := file.Open(n.Bucket())
	if err != nil {
		return nil, err
	}
	encrypted, err := secrets.New(store, key)
	if err != nil {
		return nil, err
	}
	return clusterkeys.Load(ctx, store, encrypted)
}

// CreateKeys creates an encryption key, the storage in the folder bucket, and the keys of
// the cluster in it, as the first server would: a client can be given a certificate before a
// server runs. It also returns the secrets in the storage.
func CreateKeys(ctx context.Context, encryptionKeyFile, bucket string) (*pki.Authority, secrets.Store, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(filepath.Dir(encryptionKeyFile), 0o755); err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(encryptionKeyFile, []byte(base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(bucket, 0o700); err != nil {
		return nil, nil, err
	}
	store, err := file.Open(bucket)
	if err != nil {
		return nil, nil, err
	}
	encrypted, err := secrets.New(store, key)
	if err != nil {
		return nil, nil, err
	}
	keys, err := clusterkeys.Ensure(ctx, store, encrypted, ClusterID)
	if err != nil {
		return nil, nil, err
	}
	return keys.Authority, encrypted, nil
}

// EncryptionKey returns the key of the secrets in the storage, base64.
func (n *Installation) EncryptionKey() (string, error) {
	key, err := os.ReadFile(n.EncryptionKeyFile())
	return string(key), err
}

// EncryptionKeyFile is the file of that key.
func (n *Installation) EncryptionKeyFile() string { return filepath.Join(n.dir, "encryption.key") }
