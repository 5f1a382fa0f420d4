// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

// initializeWithin is how long after the start of the servers the first machine of a replicated control plane
// may initialize a cluster. Later a machine that finds no API server waits for it: if it initialized another
// cluster, the Nodes would lose the first one.
const initializeWithin = 30 * time.Minute

// Names of the keys that the machines of a replicated control plane have in common, beside the CA of
// Kubernetes: the CA of etcd, the CA with which the API server names users to extensions, and the key of
// tokens of service accounts.
const (
	etcdAuthority       = "etcd-ca"
	frontProxyAuthority = "front-proxy-ca"
	serviceAccountKey   = "sa"
)

//go:embed userdata/replica.sh
var replicaUserdata string

// sharedKeys returns the names of the secrets that writeSharedKeys writes, as userdata/replica.sh has them.
func sharedKeys() []string {
	return []string{
		etcdAuthority + ".crt", etcdAuthority + ".key", frontProxyAuthority + ".crt", frontProxyAuthority + ".key",
		serviceAccountKey + ".key", serviceAccountKey + ".pub",
	}
}

// writeSharedKeys creates what machines of a replicated control plane have in common, and returns its files by
// the name of their secrets. With it no machine has to upload its keys for others.
func writeSharedKeys(dir string) (map[string]string, error) {
	for _, name := range []string{etcdAuthority, frontProxyAuthority} {
		if _, err := newAuthority(dir, name, name); err != nil {
			return nil, err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create the key of service accounts: %w", err)
	}
	private, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode the public key of service accounts: %w", err)
	}
	if err := errors.Join(
		writeFile(filepath.Join(dir, serviceAccountKey+".key"), private),
		writeFile(filepath.Join(dir, serviceAccountKey+".pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
	); err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, name := range sharedKeys() {
		files[name] = filepath.Join(dir, name)
	}
	return files, nil
}

// initializeBefore returns the time, in seconds since 1970, until which the machine of a shard may initialize
// the cluster: only the machine of the first shard may.
func (c *Cluster) initializeBefore(s *shard) string {
	if s != c.shards[0] {
		return "0"
	}
	return strconv.FormatInt(time.Now().Add(initializeWithin).Unix(), 10)
}
