// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// Keys of objects of the whole cluster (docs/server-reference.md#storage).
const (
	// AuthorityKey is the CA certificate that agents and operators trust, PEM.
	AuthorityKey = "ca.crt"
	// AuthoritiesKey has the authorities that the cluster accepts, once its CA was replaced. It
	// takes precedence over AuthorityKey.
	AuthoritiesKey = "authorities.json"
	// LoadedAuthoritiesPrefix is the prefix of the keys of LoadedAuthoritiesKey.
	LoadedAuthoritiesPrefix = "loaded-authorities/"
	// ClusterLeaderKey is the lock of the servers of all shards.
	ClusterLeaderKey = "leader/cluster.json"
	// SecretPrefix is the prefix of the keys of secrets, which are encrypted.
	SecretPrefix = "secret/"
	// NonceIssuerPrefix is the prefix of the keys of NonceIssuerKey.
	NonceIssuerPrefix = "nonce-issuer/"
)

// Names of the secrets that only servers may read (docs/server-reference.md#keys).
const (
	AuthoritySecret = "ca.key"
	NonceSecret     = "registration-nonce.key"
	// NextAuthoritySecretPrefix is the prefix of the keys of authorities that replaced the first.
	NextAuthoritySecretPrefix = AuthoritySecret + "."
)

// nonceIssuerSecretPrefix is the prefix of the names of NonceIssuerSecret.
const nonceIssuerSecretPrefix = "nonce-issuer/"

// NonceIssuerSecret is the secret with the key of a nonce issuer's certificate. In the object
// storage it is encrypted with a key of the issuer, not with the key of the cluster
// (docs/server-reference.md#nonce-issuers).
func NonceIssuerSecret(name, serial string) string {
	return nonceIssuerSecretPrefix + name + "/" + serial
}

// IsNonceIssuerSecret reports whether the secret with this name is the key of a nonce issuer.
func IsNonceIssuerSecret(name string) bool { return strings.HasPrefix(name, nonceIssuerSecretPrefix) }

// IsReservedSecret reports whether only servers, or nonce issuers, may read the secret with this
// name.
func IsReservedSecret(name string) bool {
	return IsUnboundSecret(name) || strings.HasPrefix(name, NextAuthoritySecretPrefix) || IsNonceIssuerSecret(name)
}

// IsUnboundSecret reports whether the secret with this name is stored without being bound to its
// name, because servers of earlier versions read it too.
func IsUnboundSecret(name string) bool { return name == AuthoritySecret || name == NonceSecret }

// IsReserved reports whether servers read the object with this key as state or secret, so
// that it must not be given to anyone. The CA certificate is public.
func IsReserved(key string) bool {
	folder, _, _ := strings.Cut(key, "/")
	switch folder {
	case AuthoritiesKey, "accepted", "accepted-losses", "audit-log", "config", "secret", "groups", "instance", "leader", "loaded-authorities", "nonce-issuer", "operator", "operator-nonce", "revoked-agents", "tenant":
		return true
	}
	return false
}

// ConfigKey is the configuration of a shard. Servers never write it.
func ConfigKey(shard string) string { return "config/" + shard + ".jsonc" }

// AcceptedKey is the configuration of a shard that its leader put in force last.
func AcceptedKey(shard string) string { return "accepted/" + shard + ".jsonc" }

// GroupsKey has the dynamic groups of a shard.
func GroupsKey(shard string) string { return "groups/" + shard + ".jsonc" }

// AcceptedLossesKey is the confirmation of an administrator that the missing instances of a
// group are lost.
func AcceptedLossesKey(shard, tenant, group string) string {
	return "accepted-losses/" + shard + "/" + tenant + "." + group + ".json"
}

// ShardLeaderKey is the lock of the servers of one shard.
func ShardLeaderKey(shard string) string { return "leader/" + shard + ".json" }

// InstancePrefix is the prefix of the keys of a shard's instance records.
func InstancePrefix(shard string) string { return "instance/" + shard + "/" }

// InstanceKey is the record of one instance. storageKey is the form of the id that
// sorts by time. Tenants and ids have no dot, so the dot separates them.
func InstanceKey(shard, tenant, storageKey string) string {
	return InstancePrefix(shard) + tenant + "." + storageKey + ".json"
}

// LoadedAuthoritiesKey has the authorities that a server of a shard has loaded.
func LoadedAuthoritiesKey(shard, server string) string {
	return LoadedAuthoritiesPrefix + shard + "/" + server + ".json"
}

// RevokedAgentsKey has the revoked certificates of the agents of a shard.
func RevokedAgentsKey(shard string) string { return "revoked-agents/" + shard + ".json" }

// ClusterAuditLog is the scope of the audit log of the whole cluster. No shard has this id.
const ClusterAuditLog = "cluster"

// AuditLogKey is an entry of the audit log of a shard or of the cluster, which was written at a
// time. Keys are ordered by time, and those of a day have a prefix of their own. id distinguishes
// entries of the same time.
func AuditLogKey(scope string, at time.Time, id string) string {
	return "audit-log/" + scope + "/" + at.UTC().Format("2006-01-02/150405.000000Z") + "-" + id + ".json"
}

// OperatorPrefix is the prefix of the keys of registrations.
const OperatorPrefix = "operator/"

// OperatorKey is the registration of an operator.
func OperatorKey(tenant, id string) string { return OperatorPrefix + tenant + "." + id + ".json" }

// NonceIssuerKey has the certificates of a nonce issuer.
func NonceIssuerKey(name string) string { return NonceIssuerPrefix + name + ".json" }

// TenantKey is the Kubernetes cluster whose operator a tenant belongs to.
func TenantKey(tenant string) string { return "tenant/" + tenant + ".json" }

// OperatorNonceKey is the public key, PEM, that a nonce was used with. It is
// created once, so a nonce is valid for one key only.
func OperatorNonceKey(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "operator-nonce/" + hex.EncodeToString(sum[:]) + ".pem"
}
