// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// Certificates that live for seconds are renewed, without a restart: drains that began
// with the first certificate end with the last, and groups are scaled meanwhile.
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
	certificate := untilShortLived(t, ttl)
	pid, _ := o.Process.PID()
	from, audit := o.logSize(t), env.AuditEnd(t)

	env.Scale(t, drained, 3)
	testcluster.Eventually(t, time.Minute, "three drains begin", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, drained)
		if err == nil && ptr.Deref(pool.Status.Draining, 0) != 3 {
			err = fmt.Errorf("%d drains", ptr.Deref(pool.Status.Draining, 0))
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

// blockedDrains succeeds when so many drains of a pool are blocked, and no others run.
func blockedDrains(ctx context.Context, name string, want int32) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	draining, blocked := ptr.Deref(pool.Status.Draining, 0), ptr.Deref(pool.Status.DrainsBlocked, 0)
	if draining != want || blocked != want {
		return fmt.Errorf("%d drains, %d of them blocked, want %d", draining, blocked, want)
	}
	return nil
}

// untilShortLived waits until the operator has a certificate of the configured lifetime,
// and returns it.
func untilShortLived(t *testing.T, ttl time.Duration) *x509.Certificate {
	t.Helper()
	var certificate *x509.Certificate
	testcluster.Eventually(t, 2*time.Minute, "the operator has a certificate that lives for seconds", func(ctx context.Context) (err error) {
		if certificate, err = env.OperatorCertificate(ctx); err != nil {
			return err
		}
		if time.Until(certificate.NotAfter) <= ttl {
			return nil
		}
		// It registers again with the same key and nonce. The server may not have read its
		// configuration yet.
		err = env.Kube.CoreV1().Secrets(installation.Namespace).Delete(ctx, testcluster.CertificateSecret, metav1.DeleteOptions{})
		return errors.Join(err, fmt.Errorf("it is valid until %s", certificate.NotAfter))
	})
	return certificate
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
