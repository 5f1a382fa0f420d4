// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"bytes"
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	admissionregistrationv1ac "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// staleRetry is how long a sync waits for the caches to show its last writes.
const staleRetry = 50 * time.Millisecond

// sync replaces missing, invalid and old parts, first in the Secret and then in the
// configuration. It does nothing if the webhook is not installed.
func (c *Controller) sync(ctx context.Context, _ cache.ObjectName) (time.Duration, error) {
	logger := klog.FromContext(ctx)
	if !c.secretWrites.CaughtUp(c.secretKey()) || !c.configurationWrites.CaughtUp(c.configurationKey()) {
		return staleRetry, nil
	}
	configuration, err := cached[admissionregistrationv1.ValidatingWebhookConfiguration](c.configurationStore, c.configurationKey())
	if err != nil {
		return 0, err
	}
	if configuration == nil || len(configuration.Webhooks) == 0 {
		logger.Info("Admission webhook is not installed", "configuration", c.config.Configuration)
		return 0, nil
	}
	hosts, err := hostsOf(configuration, c.config.Hosts)
	if err != nil {
		return 0, err
	}
	secret, err := cached[corev1.Secret](c.secretStore, c.secretKey())
	if err != nil {
		return 0, err
	}
	if secret == nil {
		secret = &corev1.Secret{}
	}

	now := c.clock.Now()
	have := readMaterial(now, secret.Data)
	decided := plan(now, have, hosts, c.since(now, configuration, secret.Data[caKey]))
	if decided.authority || decided.serving {
		if have, err = renew(now, have, decided, hosts); err != nil {
			return 0, err
		}
	}
	if err := c.store(ctx, secret, have); err != nil {
		return 0, err
	}
	if err := c.inject(ctx, configuration, have); err != nil {
		return 0, err
	}
	// At least one second, so that a certificate that expires now has expired then.
	return max(decided.next.Sub(now), time.Second), nil
}

// since returns when the configuration was first observed with this bundle, or zero
// if it has another. A new process counts from its start, which only delays the next
// step.
func (c *Controller) since(now time.Time, configuration *admissionregistrationv1.ValidatingWebhookConfiguration, bundle []byte) time.Time {
	if len(bundle) == 0 || !hasBundle(configuration, bundle) {
		c.trusted, c.trustedSince = "", time.Time{}
		return time.Time{}
	}
	if c.trusted != string(bundle) {
		c.trusted, c.trustedSince = string(bundle), now
	}
	return c.trustedSince
}

// hasBundle reports whether all webhooks of a configuration have bundle.
func hasBundle(configuration *admissionregistrationv1.ValidatingWebhookConfiguration, bundle []byte) bool {
	for _, webhook := range configuration.Webhooks {
		if !bytes.Equal(webhook.ClientConfig.CABundle, bundle) {
			return false
		}
	}
	return true
}

// store writes the Secret if it differs. The type of a Secret that another writer
// created cannot be changed and does not matter.
func (c *Controller) store(ctx context.Context, secret *corev1.Secret, want material) error {
	data, err := want.data()
	if err != nil {
		return err
	}
	same := true
	for key, value := range data {
		same = same && bytes.Equal(secret.Data[key], value)
	}
	if same {
		return nil
	}
	written, err := c.secrets.Apply(ctx, corev1ac.Secret(c.config.Secret, c.config.Namespace).WithData(data), controllers.Apply)
	if err != nil {
		return fmt.Errorf("apply Secret %s: %w", c.secretKey(), err)
	}
	c.secretWrites.Record(written)
	klog.FromContext(ctx).Info("Wrote the certificate of the admission webhook", "secret", klog.KObj(written),
		"expiry", want.serving.NotAfter, "authorities", len(want.authorities))
	return nil
}

// inject writes the authorities to the configuration if they differ. It never
// creates a configuration that was deleted again.
func (c *Controller) inject(ctx context.Context, configuration *admissionregistrationv1.ValidatingWebhookConfiguration, want material) error {
	bundle, err := want.bundle()
	if err != nil {
		return fmt.Errorf("encode the authorities: %w", err)
	}
	if hasBundle(configuration, bundle) {
		return nil
	}
	apply := admissionregistrationv1ac.ValidatingWebhookConfiguration(configuration.Name).WithUID(configuration.UID)
	for _, webhook := range configuration.Webhooks {
		apply.WithWebhooks(admissionregistrationv1ac.ValidatingWebhook().WithName(webhook.Name).
			WithClientConfig(admissionregistrationv1ac.WebhookClientConfig().WithCABundle(bundle...)))
	}
	written, err := c.configurations.Apply(ctx, apply, controllers.Apply)
	if err != nil {
		return fmt.Errorf("apply ValidatingWebhookConfiguration %s: %w", configuration.Name, err)
	}
	c.configurationWrites.Record(written)
	klog.FromContext(ctx).Info("Wrote the authorities of the admission webhook", "configuration", klog.KObj(written), "authorities", len(want.authorities))
	return nil
}

// cached returns the object of a key in a store, or nil if there is none.
func cached[T any](store cache.Store, key cache.ObjectName) (*T, error) {
	obj, exists, err := store.GetByKey(key.String())
	if err != nil {
		return nil, fmt.Errorf("read %s from the cache: %w", key, err)
	}
	if !exists {
		return nil, nil
	}
	object, ok := obj.(*T)
	if !ok {
		return nil, fmt.Errorf("read %s from the cache: it is a %T", key, obj)
	}
	return object, nil
}
