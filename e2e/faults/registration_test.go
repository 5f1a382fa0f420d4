// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

const keySecret = "nstance-operator-key"

// If an operator is killed at any step of its registration, the next operator continues it: the
// nonce is used once, for the key that was stored.
func TestRegistrationIsResumed(t *testing.T) {
	o := runFaultyOperator(t)
	untilIdentityReady(t)
	require.NoError(t, o.Process.Stop(t.Context()))
	deleteSecret(t, keySecret)
	deleteSecret(t, testcluster.CertificateSecret)
	applyNonce(t)
	before := usedNonces(t)

	o.killAt(t, keySecret)
	o.killAt(t, testcluster.CertificateSecret)
	key := secretData(t, keySecret)
	o.killAt(t, testcluster.CertificateSecret)
	testcluster.Start(t, o.Process)
	untilIdentityReady(t)

	assert.Equal(t, key, secretData(t, keySecret), "the key was replaced")
	after := usedNonces(t)
	for name := range before {
		delete(after, name)
	}
	require.Len(t, after, 1, "nonces were used")
	for _, publicKey := range after {
		assert.Equal(t, string(key["public.key"]), publicKey)
	}
	// Later starts need no nonce.
	defer saveSecret(t, "nstance-operator-nonce")()
	deleteSecret(t, "nstance-operator-nonce")
	o.restart(t)
	testcluster.Eventually(t, time.Minute, "the operator uses its certificate", func(ctx context.Context) error {
		expiry, err := installation.Metric(ctx, o.URL(), "nstance_operator_certificate_expiration_timestamp_seconds", nil)
		if err == nil && expiry == 0 {
			err = errors.New("it has none")
		}
		return err
	})
	untilIdentityReady(t)
}

// The servers do not serve an operator whose certificate was revoked. With a new nonce it
// registers again, without a restart.
func TestRevocation(t *testing.T) {
	const name = "revoked"
	o := runFaultyOperator(t)
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, 3))
	env.UntilRunning(t, name, 3)
	untilIdentityReady(t)
	losses := env.NewLossChecker(t, name)
	pid, _ := o.Process.PID()

	env.Admin(t, "operator", "revoke", "--tenant", installation.Tenant, "--all")
	testcluster.Eventually(t, 2*time.Minute, "the shards reject the certificate", func(ctx context.Context) error {
		cluster, err := env.NstanceClusters().Get(ctx, installation.ClusterName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(cluster.Status.Conditions, v1beta1.ConditionIdentityReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != "CertificateRejected" {
			return fmt.Errorf("the condition is %+v", ready)
		}
		return nil
	})
	env.Scale(t, name, 6)
	applyNonce(t)
	untilIdentityReady(t)
	env.UntilRunning(t, name, 6)
	losses.ExpectNone(t)
	if now, running := o.Process.PID(); !running || now != pid {
		t.Errorf("the operator was process %d and is %d, running %t", pid, now, running)
	}
}

// applyNonce gives the operator a new nonce, as an administrator does.
func applyNonce(t *testing.T) {
	t.Helper()
	nonce := env.Admin(t, "cluster", "nonce", "--tenant", installation.Tenant)
	require.NoError(t, env.Installation.ApplyNonce(t.Context(), nonce))
}

// killAt starts the operator and kills it while it writes a Secret.
func (o *faultyOperator) killAt(t *testing.T, secret string) {
	t.Helper()
	fault := o.Proxy.Inject(faultproxy.Rule{Verbs: []string{"patch"}, Resource: "secrets", Name: secret})
	testcluster.Start(t, o.Process)
	untilMet(t, fault, 1)
	require.NoError(t, o.Process.Kill(t.Context()))
	o.Proxy.Heal()
	env.ReleaseLease(t)
}

// untilIdentityReady waits until the cluster has the condition IdentityReady.
func untilIdentityReady(t *testing.T) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "the operator has a certificate", func(ctx context.Context) error {
		cluster, err := env.NstanceClusters().Get(ctx, installation.ClusterName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, err := env.Kube.CoreV1().Secrets(installation.Namespace).Get(ctx, testcluster.CertificateSecret, metav1.GetOptions{}); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(cluster.Status.Conditions, v1beta1.ConditionIdentityReady) {
			return fmt.Errorf("conditions %+v", cluster.Status.Conditions)
		}
		return nil
	})
}

// usedNonces returns the keys for which nonces were used, by the name of the claim.
func usedNonces(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(env.Installation.Bucket(), "operator-nonce", "*.pem"))
	require.NoError(t, err)
	used := map[string]string{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		used[path] = string(data)
	}
	require.NotEmpty(t, used)
	return used
}

func secretData(t *testing.T, name string) map[string][]byte {
	t.Helper()
	secret, err := env.Kube.CoreV1().Secrets(installation.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return secret.Data
}

// expectNoRepeatedFailure fails the test if a sync of the operator failed twice in a row
// since from.
func (o *faultyOperator) expectNoRepeatedFailure(t *testing.T, from int) {
	t.Helper()
	log, err := os.ReadFile(o.Process.LogPath())
	require.NoError(t, err)
	for line := range bytes.Lines(log[from:]) {
		if bytes.Contains(line, []byte(`"Sync failed"`)) && !bytes.Contains(line, []byte("retries=0")) {
			t.Errorf("the operator logs: %s", line)
		}
	}
}

// Certificates that live for seconds are renewed, without a restart: drains that began with the
// first certificate end with the last, and groups are scaled in between.
func TestRenewal(t *testing.T) {
	const (
		ttl     = 15 * time.Second
		drained = "renewed"
		scaled  = "renewed-meanwhile"
	)
	o := runFaultyOperator(t)
	// At the end, after the servers have their configuration back, the operator has a
	// certificate that lives for a day again.
	t.Cleanup(func() { testcluster.Eventually(t, time.Minute, "the operator registers again", registerAgain(ttl)) })
	for _, shard := range shardIDs {
		require.NoError(t, env.Installation.Reconfigure(shard, func(s *installation.Shard) {
			s.CertificateTTL, s.DrainTimeout = ttl, 10*time.Minute
		}))
		t.Cleanup(func() {
			assert.NoError(t, env.Installation.Reconfigure(shard, func(s *installation.Shard) { s.CertificateTTL, s.DrainTimeout = 0, 0 }))
		})
	}
	replicas := int32(3)
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), scaled, replicas))
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), drained, 6))
	env.UntilRunning(t, drained, 6)
	env.BlockDrains(t, drained)
	certificate := env.UntilCertificateTTL(t, ttl)
	pid, _ := o.Process.PID()
	from, audit := o.logSize(t), env.AuditEnd(t)

	env.Scale(t, drained, 3)
	testcluster.Eventually(t, time.Minute, "three drains begin", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, drained)
		if err == nil && ptr.Deref(pool.Status.DrainingReplicas, 0) != 3 {
			err = fmt.Errorf("%d drains", ptr.Deref(pool.Status.DrainingReplicas, 0))
		}
		return err
	})
	for range tier.Pick(3, 8) {
		certificate = untilRenewed(t, certificate)
		replicas++
		env.Scale(t, scaled, replicas)
		env.UntilRunning(t, scaled, replicas)
	}
	testcluster.Eventually(t, time.Minute, "three drains are blocked", func(ctx context.Context) error { return blockedDrains(ctx, drained, 3) })
	env.UnblockDrains(t, drained)
	env.UntilRunning(t, drained, 3)

	evictions := env.OperatorRequests(t, audit, func(r controlplane.Request) bool {
		return r.Verb == "create" && r.Subresource == "eviction" && r.Namespace == drained && r.Code == 201
	})
	assert.Len(t, evictions, 3, "Pods were evicted")
	if now, running := o.Process.PID(); !running || now != pid {
		t.Errorf("the operator was process %d and is %d, running %t", pid, now, running)
	}
	o.expectNoRepeatedFailure(t, from)
}

// blockedDrains succeeds when so many drains of a pool are blocked, and no other drains run.
func blockedDrains(ctx context.Context, name string, want int32) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	draining, blocked := ptr.Deref(pool.Status.DrainingReplicas, 0), ptr.Deref(pool.Status.BlockedReplicas, 0)
	if draining != want || blocked != want {
		return fmt.Errorf("%d drains, %d of them blocked, want %d", draining, blocked, want)
	}
	return nil
}

// registerAgain succeeds when the operator has a certificate that lives for longer than
// ttl, and deletes any other.
func registerAgain(ttl time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		certificate, err := env.OperatorCertificate(ctx)
		if err != nil || time.Until(certificate.NotAfter) > ttl {
			return err
		}
		err = env.Kube.CoreV1().Secrets(installation.Namespace).Delete(ctx, testcluster.CertificateSecret, metav1.DeleteOptions{})
		return errors.Join(err, fmt.Errorf("it is valid until %s", certificate.NotAfter))
	}
}

// untilRenewed waits until the operator has another certificate.
func untilRenewed(t *testing.T, before *x509.Certificate) *x509.Certificate {
	t.Helper()
	var certificate *x509.Certificate
	testcluster.Eventually(t, time.Minute, "the certificate is renewed", func(ctx context.Context) (err error) {
		certificate, err = env.OperatorCertificate(ctx)
		if err == nil && certificate.SerialNumber.Cmp(before.SerialNumber) == 0 {
			err = fmt.Errorf("it is valid until %s", certificate.NotAfter)
		}
		return err
	})
	return certificate
}
