// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// rejectedRetry is after what time a nonce that a server rejected is sent again.
const rejectedRetry = 5 * time.Minute

func (c *Controller) sync(ctx context.Context, _ cache.ObjectName) (time.Duration, error) {
	if !c.keyWrites.CaughtUp(c.keyKey()) || !c.certWrites.CaughtUp(c.certKey()) {
		return controller.StaleRetry, nil
	}
	observed, err := c.observe()
	if err != nil {
		return 0, err
	}
	now := c.clock.Now()
	decided := plan(observed, now)
	switch decided.step {
	case createKey:
		err = c.createKey(ctx)
	case register:
		err = c.register(ctx, observed)
	case renew:
		err = c.renew(ctx, observed)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	c.setState(newState(observed, decided, err, now))
	c.metrics.observe(observed.cert)
	if decided.step == register && nonceRejected(err) {
		c.rejected = rejection{nonce: observed.nonce, text: shard.Message(err), until: now.Add(rejectedRetry)}
		klog.FromContext(ctx).Error(err, "The registration nonce was rejected", "retry", rejectedRetry)
		return rejectedRetry, nil
	}
	if decided.again.IsZero() {
		return 0, err
	}
	return decided.again.Sub(now), err
}

// observe reads the caches.
func (c *Controller) observe() (observation, error) {
	ca, err := controller.GetCached(corev1listers.NewConfigMapLister(c.options.CA.GetIndexer()).ConfigMaps(c.namespace).Get,
		"ConfigMap", cache.NewObjectName(c.namespace, c.options.CAConfigMap))
	if err != nil {
		return observation{}, err
	}
	secrets := map[string]*corev1.Secret{}
	for name, informer := range map[string]cache.SharedIndexInformer{
		c.options.NonceSecret: c.options.Nonce,
		c.options.KeySecret:   c.options.Key,
		c.options.CertSecret:  c.options.Cert,
	} {
		if secrets[name], err = c.secret(informer, name); err != nil {
			return observation{}, err
		}
	}
	o := observation{rejected: c.rejected}
	o.authorities, o.caProblem = parseCA(c.name(c.options.CAConfigMap), ca)
	o.key, o.keyProblem = parseKey(c.name(c.options.KeySecret), secrets[c.options.KeySecret])
	o.nonce, o.nonceProblem = parseNonce(c.name(c.options.NonceSecret), secrets[c.options.NonceSecret], c.options.ClusterID, c.options.Tenant)
	if o.caProblem == nil {
		o.cert, o.certProblem = parseCertificate(c.name(c.options.CertSecret), secrets[c.options.CertSecret], o.authorities)
	}
	o.refused = c.refused()
	return o, nil
}

func (c *Controller) name(object string) string { return c.namespace + "/" + object }

// secret returns a Secret of an informer, nil if there is none.
func (c *Controller) secret(informer cache.SharedIndexInformer, name string) (*corev1.Secret, error) {
	return controller.GetCached(corev1listers.NewSecretLister(informer.GetIndexer()).Secrets(c.namespace).Get,
		"Secret", cache.NewObjectName(c.namespace, name))
}

// refused returns the text of a shard that rejects the certificate, "" if none does or
// if one accepts it.
func (c *Controller) refused() string {
	var text string
	for _, id := range slices.Sorted(maps.Keys(c.options.Endpoints.Endpoints())) {
		reachable, err := c.groups.Reachable(id)
		if reachable {
			return ""
		}
		if text == "" && shard.IsUnauthenticated(err) {
			text = fmt.Sprintf("shard %s: %s", id, shard.Message(err))
		}
	}
	return text
}

// createKey creates a key and stores it. It is used only after a cache has it, so that
// no certificate is ever requested for a key that is lost.
func (c *Controller) createKey(ctx context.Context) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("generate the key of the client certificate: %w", err)
	}
	return c.storeKey(ctx, key)
}

// register exchanges the nonce for a certificate.
func (c *Controller) register(ctx context.Context, o observation) error {
	publicKeyPEM, err := keys.EncodePublic(o.key.Public().(ed25519.PublicKey))
	if err != nil {
		return fmt.Errorf("encode the public key: %w", err)
	}
	certPEM, err := c.registerAtShards(ctx, o.authorities, o.nonce, publicKeyPEM)
	if err != nil {
		return err
	}
	keyPEM, err := keys.EncodePrivate(o.key)
	if err != nil {
		return fmt.Errorf("encode the key of the client certificate: %w", err)
	}
	return c.storeCertificate(ctx, issued{certPEM: certPEM, keyPEM: keyPEM, nonce: digest(o.nonce), authorities: o.authorities})
}

// renew exchanges the certificate for the next one, for the same key.
func (c *Controller) renew(ctx context.Context, o observation) error {
	cert := o.cert
	if cert.key == nil {
		return errors.New("renew the client certificate: its key is not an Ed25519 key")
	}
	publicKeyPEM, err := keys.EncodePublic(cert.key.Public().(ed25519.PublicKey))
	if err != nil {
		return fmt.Errorf("encode the public key: %w", err)
	}
	var failures shardErrors
	for _, id := range slices.Sorted(maps.Keys(c.options.Endpoints.Endpoints())) {
		certPEM, err := c.options.Renewer.RenewCertificate(ctx, id, publicKeyPEM)
		if err == nil {
			return c.storeCertificate(ctx, issued{certPEM: certPEM, keyPEM: cert.keyPEM, nonce: cert.nonce, authorities: o.authorities})
		}
		failures.add(id, err)
	}
	return fmt.Errorf("renew the client certificate: %w", failures.join())
}
