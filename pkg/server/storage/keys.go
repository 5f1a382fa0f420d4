// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"crypto/sha256"
	"encoding/hex"
)

// Keys of what concerns the whole cluster (server document, wire contract).
const (
	// AuthorityKey holds the certificate that agents and operators trust, PEM.
	AuthorityKey = "ca.crt"
	// ClusterLeaderKey is the lock of the servers of all shards.
	ClusterLeaderKey = "leader/cluster.json"
	// SecretPrefix is before the names of secrets, which are encrypted.
	SecretPrefix = "secret/"
)

// ConfigKey holds the configuration of a shard. Servers never write it.
func ConfigKey(shard string) string { return "config/" + shard + ".jsonc" }

// GroupsKey holds the dynamic groups of a shard.
func GroupsKey(shard string) string { return "groups/" + shard + ".jsonc" }

// ShardLeaderKey is the lock of the servers of one shard.
func ShardLeaderKey(shard string) string { return "leader/" + shard + ".json" }

// InstancePrefix is before the keys of a shard's instance records.
func InstancePrefix(shard string) string { return "instance/" + shard + "/" }

// InstanceKey holds the record of one instance. storageKey is the form of the id
// that sorts by time. No id has a dot, so the parts can be told apart.
func InstanceKey(shard, tenant, storageKey string) string {
	return InstancePrefix(shard) + tenant + "." + storageKey + ".json"
}

// OperatorKey holds the registration of an operator.
func OperatorKey(tenant, id string) string { return "operator/" + tenant + "." + id + ".json" }

// OperatorNonceKey holds the public key, PEM, that a nonce was used with. It is
// made once, and so a nonce is good for one key.
func OperatorNonceKey(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "operator-nonce/" + hex.EncodeToString(sum[:]) + ".pem"
}
