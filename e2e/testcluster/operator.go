// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/installation"
)

// ShortLease are the flags of an operator that soon notices the loss of its lease, and of
// a standby that soon leads.
var ShortLease = []string{
	"--leader-elect-lease-duration", "6s",
	"--leader-elect-renew-deadline", "4s",
	"--leader-elect-retry-period", "1s",
}

// ShortProbe are the flags of an operator that soon notices that a shard does not respond.
var ShortProbe = []string{"--shard-probe-interval", "3s"}

// StartOperator starts the operator that the tests share.
func (c *Cluster) StartOperator(ctx context.Context, flags ...string) (err error) {
	c.Operator, err = c.Installation.StartOperator(ctx, installation.Operator{Component: "operator", Flags: flags})
	return err
}

// OperatorProcess returns the component that runs the operator.
func (c *Cluster) OperatorProcess() *controlplane.Component { return c.Component(c.Operator.Component) }

// RunStandby runs a second operator until the end of the test.
func (c *Cluster) RunStandby(t testing.TB, flags ...string) installation.Operator {
	t.Helper()
	return c.runOperator(t, installation.Operator{Flags: flags})
}

func (c *Cluster) runOperator(t testing.TB, o installation.Operator) installation.Operator {
	t.Helper()
	o.Component = fmt.Sprintf("operator-%d", len(c.Components())) // unique
	o, err := c.Installation.StartOperator(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, c.Component(o.Component).Stop(context.WithoutCancel(t.Context())))
	})
	return o
}

// ProxiedOperator is an operator that reaches the API server through a proxy that
// can inject faults.
type ProxiedOperator struct {
	installation.Operator
	Process *controlplane.Component
	Proxy   *faultproxy.Proxy
}

// ReplaceOperator stops the operator and runs in its place an operator that uses a proxy, until
// the end of the test.
func (c *Cluster) ReplaceOperator(t testing.TB, flags ...string) *ProxiedOperator {
	t.Helper()
	Stop(t, c.OperatorProcess())
	certificate, err := c.ServingCertificate("proxy")
	require.NoError(t, err)
	proxy, err := faultproxy.Start(c.AdminConfig(), certificate)
	require.NoError(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	operator := c.runOperator(t, installation.Operator{
		Server: proxy.URL,
		// The API server calls the webhook at the same address as before.
		WebhookPort: c.Operator.WebhookPort,
		Flags:       flags,
	})
	return &ProxiedOperator{Operator: operator, Process: c.Component(operator.Component), Proxy: proxy}
}

// ReleaseLease lets the next operator lead at once: the tests do not measure how long it waits for
// the lease of a killed operator. An API server that was suspended may need a moment.
func (c *Cluster) ReleaseLease(t testing.TB) {
	t.Helper()
	Eventually(t, time.Minute, "the lease is released", func(ctx context.Context) error {
		_, err := c.Kube.CoordinationV1().Leases(installation.Namespace).Patch(ctx, "nstance-operator-leader-election",
			types.MergePatchType, []byte(`{"spec":{"holderIdentity":null}}`), metav1.PatchOptions{})
		return err
	})
}

// QueueAdds returns how many keys an operator has added to a queue.
func QueueAdds(ctx context.Context, o installation.Operator, queue string) (float64, error) {
	return installation.Metric(ctx, o.URL(), "workqueue_adds_total", map[string]string{"name": queue})
}

// UntilQueued waits until the operator has added so many more keys to one of its
// queues.
func (c *Cluster) UntilQueued(t testing.TB, timeout time.Duration, queue string, keys int) {
	t.Helper()
	before, err := QueueAdds(t.Context(), c.Operator, queue)
	require.NoError(t, err)
	Eventually(t, timeout, "keys are added to queue "+queue, func(ctx context.Context) error {
		now, err := QueueAdds(ctx, c.Operator, queue)
		if err == nil && now-before < float64(keys) {
			err = fmt.Errorf("%v of %d", now-before, keys)
		}
		return err
	})
}

// CertificateSecret is the name of the Secret with the certificate of the operator.
const CertificateSecret = "nstance-operator-cert"

// OperatorCertificate returns the certificate that the operator has.
func (c *Cluster) OperatorCertificate(ctx context.Context) (*x509.Certificate, error) {
	secret, err := c.Kube.CoreV1().Secrets(installation.Namespace).Get(ctx, CertificateSecret, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		return nil, errors.New("the Secret has no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// UntilCertificateTTL waits until the operator has a certificate that expires within ttl, and
// returns it. It deletes other certificates, so that the operator registers again with the
// same key and nonce: the server may not have read its configuration yet.
func (c *Cluster) UntilCertificateTTL(t testing.TB, ttl time.Duration) *x509.Certificate {
	t.Helper()
	var certificate *x509.Certificate
	Eventually(t, 2*time.Minute, "the operator has a certificate that expires within "+ttl.String(), func(ctx context.Context) (err error) {
		if certificate, err = c.OperatorCertificate(ctx); err != nil || time.Until(certificate.NotAfter) <= ttl {
			return err
		}
		err = c.Kube.CoreV1().Secrets(installation.Namespace).Delete(ctx, CertificateSecret, metav1.DeleteOptions{})
		return errors.Join(err, fmt.Errorf("it is valid until %s", certificate.NotAfter))
	})
	return certificate
}
