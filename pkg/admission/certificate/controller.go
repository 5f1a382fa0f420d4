// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package certificate keeps the certificate that the admission webhook is served
// with. The leader makes it, with an authority of its own, in a Secret, and tells
// the API server whom to trust, in the webhook configuration; every replica serves
// from the Secret. Both are replaced in time, and put right when somebody damages
// them.
package certificate

import (
	"context"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	admissionregistration "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/controller"
)

// Config names the objects.
type Config struct {
	// Namespace and Secret are where the certificate is kept.
	Namespace, Secret string
	// Configuration is the ValidatingWebhookConfiguration whose webhooks are
	// served with the certificate.
	Configuration string
}

// Controller is the controller of the one certificate.
type Controller struct {
	config             Config
	secrets            core.SecretInterface
	configurations     admissionregistration.ValidatingWebhookConfigurationInterface
	secretStore        cache.Store
	configurationStore cache.Store
	clock              clock.PassiveClock
	queue              *controller.Queue[cache.ObjectName]

	secretWrites, configurationWrites *controller.Writes

	// trusted is the bundle that the configuration was last seen with, and since
	// the first time that this process saw it so. Only the one worker uses them.
	trusted      string
	trustedSince time.Time
}

// New makes the controller and registers its handlers, whose registrations are
// returned for waiting until they have seen every object. The informers watch the
// one Secret and the one configuration.
func New(
	config Config,
	client kubernetes.Interface,
	secrets, configurations cache.SharedIndexInformer,
	clock clock.PassiveClock,
) (*Controller, []cache.ResourceEventHandlerRegistration, error) {
	c := &Controller{
		config:              config,
		secrets:             client.CoreV1().Secrets(config.Namespace),
		configurations:      client.AdmissionregistrationV1().ValidatingWebhookConfigurations(),
		secretStore:         secrets.GetStore(),
		configurationStore:  configurations.GetStore(),
		clock:               clock,
		secretWrites:        controller.NewWrites(secrets.GetStore()),
		configurationWrites: controller.NewWrites(configurations.GetStore()),
	}
	c.queue = controller.NewQueue("certificate", c.sync)

	registrations, err := controller.Watch(
		controller.Watched{What: "the Secret", Informer: secrets, Handler: controller.OnChange(func(_, _ *corev1.Secret) { c.enqueue() })},
		controller.Watched{What: "the webhook configuration", Informer: configurations,
			Handler: controller.OnChange(func(_, _ *admissionregistrationv1.ValidatingWebhookConfiguration) { c.enqueue() })},
	)
	if err != nil {
		return nil, nil, err
	}
	// There may be nothing to watch yet, which is worth a word.
	c.enqueue()
	return c, registrations, nil
}

// Run keeps the certificate until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, 1) }

func (c *Controller) enqueue() { c.queue.Add(c.secretKey()) }

func (c *Controller) secretKey() cache.ObjectName {
	return cache.NewObjectName(c.config.Namespace, c.config.Secret)
}

func (c *Controller) configurationKey() cache.ObjectName {
	return cache.NewObjectName("", c.config.Configuration)
}
