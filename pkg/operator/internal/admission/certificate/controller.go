// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package certificate manages the serving certificate of the admission webhook and of the
// metrics. The leader issues it, with an authority of its own, stores both in a Secret,
// and writes the authority to the webhook configuration for the API server; every
// replica serves with the Secret. The leader replaces both before they expire, and
// repairs them after changes by other writers.
package certificate

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	admissionregistrationv1ac "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	admissionregistration "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// Config names the objects that the controller manages.
type Config struct {
	// Namespace and Secret name the Secret of the certificate.
	Namespace, Secret string
	// Configuration is the ValidatingWebhookConfiguration whose webhooks are
	// served with the certificate.
	Configuration string
	// Hosts are further host names for the certificate, such as the Service of the metrics.
	Hosts []string
}

// Controller manages the certificate. Its queue has one key.
type Controller struct {
	controller.Registrations

	config             Config
	secrets            core.SecretInterface
	configurations     admissionregistration.ValidatingWebhookConfigurationInterface
	secretStore        cache.Store
	configurationStore cache.Store
	clock              clock.PassiveClock
	queue              *controller.Queue[cache.ObjectName]

	secretWrites, configurationWrites *controller.WriteTracker

	// trusted is the bundle that the configuration was last observed with, and
	// trustedSince is when this process first observed it. Only the single worker
	// uses them.
	trusted      string
	trustedSince time.Time
}

// New returns the controller and registers its event handlers. The informers must watch only
// the Secret and the configuration of config.
func New(
	config Config,
	client kubernetes.Interface,
	secrets, configurations cache.SharedIndexInformer,
	clock clock.PassiveClock,
) (*Controller, error) {
	c := &Controller{
		config:              config,
		secrets:             client.CoreV1().Secrets(config.Namespace),
		configurations:      client.AdmissionregistrationV1().ValidatingWebhookConfigurations(),
		secretStore:         secrets.GetStore(),
		configurationStore:  configurations.GetStore(),
		clock:               clock,
		secretWrites:        controller.NewWriteTracker(secrets.GetStore()),
		configurationWrites: controller.NewWriteTracker(configurations.GetStore()),
	}
	c.queue = controller.NewQueue("certificate", c.sync)

	var err error
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "the Secret", Informer: secrets, Handler: controller.OnChange(func(_, _ *corev1.Secret) { c.enqueue() })},
		controller.Watched{What: "the webhook configuration", Informer: configurations,
			Handler: controller.OnChange(func(_, _ *admissionregistrationv1.ValidatingWebhookConfiguration) { c.enqueue() })},
	)
	if err != nil {
		return nil, err
	}
	// If no object exists, no event arrives. The first sync logs that.
	c.enqueue()
	return c, nil
}

// Run manages the certificate until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, 1) }

func (c *Controller) enqueue() { c.queue.Add(c.secretKey()) }

func (c *Controller) secretKey() cache.ObjectName {
	return cache.NewObjectName(c.config.Namespace, c.config.Secret)
}

func (c *Controller) configurationKey() cache.ObjectName {
	return cache.NewObjectName("", c.config.Configuration)
}

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

// since returns when this process first observed the configuration with this bundle, or zero
// if it has another bundle. A restart only delays the next step.
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

// inject writes the authorities to the configuration if they differ. It never creates a
// configuration that another client has deleted.
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

// cached returns the object of a key in a store, nil if it does not exist.
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

// settlePeriod is how long the configuration must have had a new authority before
// certificates are signed by it: every API server has read it by then.
const settlePeriod = 10 * time.Minute

// decision names the parts to replace.
type decision struct {
	// authority means to add a new authority before the trusted ones.
	authority bool
	// serving means to issue a new serving certificate, signed by the newest
	// authority.
	serving bool
	// next is when plan has to be called again.
	next time.Time
}

// plan decides what to replace for a webhook at hosts. trustedSince is since when the
// configuration has exactly the present authorities, or zero if it has others.
//
// A valid authority or certificate is replaced after two thirds of its lifetime. A new
// authority is trusted together with the old one for settlePeriod before it signs, and the old
// authority stays trusted until it expires. So an API server with a slightly older
// configuration can verify the certificate of every replica at any time.
func plan(now time.Time, have material, hosts []string, trustedSince time.Time) decision {
	var d decision
	newest := have.newest()
	d.authority = newest == nil || have.key == nil || !now.Before(dueAt(newest))
	if !have.serves(now, hosts) {
		d.serving = true
	}
	if d.authority || d.serving {
		// The next time depends on the new parts.
		d.next = now
		return d
	}

	d.next = earliest(dueAt(newest), have.authorities[len(have.authorities)-1].NotAfter)
	settled := trustedSince.Add(settlePeriod)
	due := dueAt(have.serving)
	if have.serving.CheckSignatureFrom(newest) != nil {
		due = now
	}
	switch {
	case now.Before(due):
		d.next = earliest(d.next, due)
	case trustedSince.IsZero():
		// The change of the configuration enqueues the next sync.
	case now.Before(settled):
		d.next = earliest(d.next, settled)
	default:
		d.serving = true
		d.next = now
	}
	return d
}

// dueAt returns when to replace a certificate: early enough for an administrator to
// notice when that fails.
func dueAt(certificate *x509.Certificate) time.Time {
	lifetime := certificate.NotAfter.Sub(certificate.NotBefore)
	return certificate.NotBefore.Add(lifetime / 3 * 2)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
