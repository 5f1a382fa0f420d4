// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/server/storage"
)

// An operator that was down for longer than its certificate is valid registers again. Then it
// sends a size that was changed in between, and nothing is deleted.
func TestExpiredCertificate(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const pool, replicas = "overslept", 4
	const ttl = 30 * time.Second
	createPool(t, pool, v1beta1.MachineModeNever, replicas, env.ShardIDs...)
	before := nodes(t)
	losses, from := env.NewLossChecker(t, pool), env.AuditEnd(t)
	certificate := shortCertificate(t, ttl)
	testcluster.Stop(t, env.OperatorProcess())
	setCertificateTTL(t, 0)
	env.Scale(t, pool, replicas+2)
	testcluster.Eventually(t, 2*time.Minute, "the certificate has expired", func(context.Context) error {
		if left := time.Until(certificate.NotAfter); left > 0 {
			return fmt.Errorf("it is valid for %s", left)
		}
		return nil
	})
	testcluster.Start(t, env.OperatorProcess())

	p := env.StartProcedure(t, "A certificate that has expired", storageValues(t))
	p.Run("See why the operator is not registered")
	expectIdentity(t, metav1.ConditionFalse, "CertificateExpired")
	p.Run("Make a new nonce")
	p.Run("Wait until the shards accept the certificate")

	env.UntilRunning(t, pool, replicas+2)
	expectKept(t, before, "", "")
	losses.ExpectNone(t)
	expectDeletionsOf(t, from, "", "", before)
}

// The CA is replaced: the operator is registered with the new CA, and nothing is created or
// deleted.
func TestReplaceCA(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const pool, replicas = "recertified", 4
	createPool(t, pool, v1beta1.MachineModeNever, replicas, env.ShardIDs...)
	before, from := nodes(t), env.AuditEnd(t)
	losses := env.NewLossChecker(t, pool)
	old := env.Installation.Authority().CertificatePEM()

	p := env.StartProcedure(t, "Replace the CA", storageValues(t))
	p.Do("Stop all servers of the cluster", func() { stopServers(t) })
	p.Do("Rename the objects `ca.crt` and `secret/ca.key`", func() {
		for _, key := range []string{storage.AuthorityKey, storage.SecretPrefix + storage.AuthoritySecret} {
			object := filepath.Join(env.Installation.Bucket(), filepath.FromSlash(key))
			require.NoError(t, os.Rename(object, object+".old"))
		}
	})
	p.Do("Start the servers", func() { startServers(t) })
	require.NoError(t, env.Installation.ReadAuthority(t.Context()))
	p.Run("Give the operator the new CA and a new nonce")
	p.Run("Wait until the operator is registered")
	p.Do("Issue the certificates of administrators", func() {})

	authority := env.Installation.Authority().CertificatePEM()
	assert.False(t, bytes.Equal(old, authority), "the CA is the same")
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(authority))
	certificate, err := env.OperatorCertificate(t.Context())
	require.NoError(t, err)
	_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err, "the certificate of the operator")

	env.UntilRunning(t, pool, replicas)
	expectKept(t, before, "", "")
	assert.Len(t, nodes(t), len(before))
	env.Scale(t, pool, replicas+2)
	env.UntilRunning(t, pool, replicas+2)
	losses.ExpectNone(t)
	expectDeletionsOf(t, from, "", "", before)
}

// The CA is rotated while everything runs: the operator stays registered, and nothing is created
// or deleted.
func TestRotateCA(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const pool, replicas = "rotated", 4
	createPool(t, pool, v1beta1.MachineModeNever, replicas, env.ShardIDs...)
	before, from := nodes(t), env.AuditEnd(t)
	losses := env.NewLossChecker(t, pool)
	old := env.Installation.Authority().CertificatePEM()
	values := storageValues(t)
	delete(values, "TENANT")
	values["WITHOUT"] = "--without booting" // the machines of the test have no agents

	p := env.StartProcedure(t, "Rotate the CA", values)
	p.Run("Create the next CA")
	p.Run("Give the operator the present and the next CA")
	p.Run("Let the next CA issue")
	require.NoError(t, env.Installation.ReadAuthority(t.Context()))
	env.Scale(t, pool, replicas+1)
	env.UntilRunning(t, pool, replicas+1)
	p.Do("Issue the certificates of administrators", func() {})
	p.Run("Refuse the old CA")
	require.NoError(t, env.Installation.ReadAuthority(t.Context()))
	p.Run("Give the operator the CA that is left")

	authority := env.Installation.Authority().CertificatePEM()
	assert.NotEqual(t, string(old), string(authority), "the CA is the same")
	certificate, err := env.OperatorCertificate(t.Context())
	require.NoError(t, err)
	require.NoError(t, authorities.Verify(certificate, authority), "the certificate of the operator")
	expectKept(t, before, "", "")
	env.Scale(t, pool, replicas+2)
	env.UntilRunning(t, pool, replicas+2)
	losses.ExpectNone(t)
	expectDeletionsOf(t, from, "", "", before)
}

// storageValues are the values of procedures that read the storage of the servers.
func storageValues(t *testing.T) map[string]string {
	t.Helper()
	key, err := env.Installation.EncryptionKey()
	require.NoError(t, err)
	return map[string]string{
		"NAMESPACE":              installation.Namespace,
		"TENANT":                 installation.Tenant,
		"STORAGE":                "--storage file --storage-bucket " + env.Installation.Bucket(),
		"NSTANCE_ENCRYPTION_KEY": key,
	}
}

// shortCertificate gives the operator a certificate with a lifetime, and returns it.
func shortCertificate(t *testing.T, ttl time.Duration) *x509.Certificate {
	t.Helper()
	setCertificateTTL(t, ttl)
	t.Cleanup(func() { setCertificateTTL(t, 0) })
	return env.UntilCertificateTTL(t, ttl)
}

// setCertificateTTL configures how long certificates of operators are valid; 0 is the
// default.
func setCertificateTTL(t *testing.T, ttl time.Duration) {
	t.Helper()
	for _, shard := range env.ShardIDs {
		require.NoError(t, env.Installation.Reconfigure(shard, func(s *installation.Shard) { s.CertificateTTL = ttl }))
	}
}

// expectIdentity fails the test unless the condition IdentityReady has a status and a
// reason.
func expectIdentity(t *testing.T, status metav1.ConditionStatus, reason string) {
	t.Helper()
	cluster, err := env.NstanceClusters().Get(t.Context(), installation.ClusterName, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, testcluster.HasCondition(cluster.Status.Conditions, "IdentityReady", status, reason))
}
