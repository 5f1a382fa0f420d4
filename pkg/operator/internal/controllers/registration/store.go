// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// storeKey stores a new key. The Secret is immutable: if there is one that the cache
// does not have yet, the API server rejects the change, and its key stays.
func (c *Controller) storeKey(ctx context.Context, key ed25519.PrivateKey) error {
	privateKeyPEM, err := keys.EncodePrivate(key)
	if err != nil {
		return fmt.Errorf("encode the key of the client certificate: %w", err)
	}
	publicKeyPEM, err := keys.EncodePublic(key.Public().(ed25519.PublicKey))
	if err != nil {
		return fmt.Errorf("encode the public key: %w", err)
	}
	written, err := c.secrets.Apply(ctx, corev1ac.Secret(c.options.KeySecret, c.namespace).
		WithType(corev1.SecretTypeOpaque).
		WithImmutable(true).
		WithData(map[string][]byte{privateKeyKey: privateKeyPEM, publicKeyKey: publicKeyPEM}), controllers.Apply)
	if err != nil {
		return fmt.Errorf("apply Secret %s: %w", c.name(c.options.KeySecret), err)
	}
	c.keyWrites.Record(written)
	klog.FromContext(ctx).Info("Key for the client certificate created", "secret", klog.KObj(written))
	return nil
}

// issued is a certificate that a server has just issued.
type issued struct {
	certPEM, keyPEM []byte
	// nonce is the digest of the nonce that the operator registered with.
	nonce       string
	authorities *x509.CertPool
}

// storeCertificate stores a certificate, from where every replica takes it for its next
// handshakes. A certificate that cannot be used replaces none.
func (c *Controller) storeCertificate(ctx context.Context, i issued) error {
	now := c.clock.Now()
	pair, err := tls.X509KeyPair(i.certPEM, i.keyPEM)
	if err != nil {
		return fmt.Errorf("the server issued a certificate that cannot be used: %w", err)
	}
	if err := chains(pair.Leaf, i.authorities); err != nil {
		return fmt.Errorf("the server issued a certificate of another authority: %w", err)
	}
	if !now.Before(pair.Leaf.NotAfter) {
		return fmt.Errorf("the server issued a certificate that expires at %s, which has passed: the clocks differ", format(pair.Leaf.NotAfter))
	}
	existing, err := c.secret(c.options.Cert, c.options.CertSecret)
	if err != nil {
		return err
	}
	// The type of a Secret is immutable.
	secretType := corev1.SecretTypeTLS
	if existing != nil {
		secretType = existing.Type
	}
	written, err := c.secrets.Apply(ctx, corev1ac.Secret(c.options.CertSecret, c.namespace).
		WithType(secretType).
		WithAnnotations(map[string]string{
			v1beta1.AnnotationCertificateIssued: now.UTC().Format(time.RFC3339Nano),
			v1beta1.AnnotationRegisteredWith:    i.nonce,
		}).
		WithData(map[string][]byte{corev1.TLSCertKey: i.certPEM, corev1.TLSPrivateKeyKey: i.keyPEM}), controllers.Apply)
	if err != nil {
		return fmt.Errorf("apply Secret %s: %w", c.name(c.options.CertSecret), err)
	}
	c.certWrites.Record(written)
	klog.FromContext(ctx).Info("Client certificate stored", "secret", klog.KObj(written),
		"serial", pair.Leaf.SerialNumber.Text(16), "expires", pair.Leaf.NotAfter)
	return nil
}
