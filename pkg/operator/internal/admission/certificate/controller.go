// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package certificate manages the serving certificate of the admission webhook and of the
// metrics. The leader issues it, with an authority of its own, stores both in a Secret,
// and writes the authority to the webhook configuration for the API server; every
// replica serves with the Secret. The leader replaces both before they expire, and
// repairs them after changes by other writers.
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
	// Namespace and Secret name the Secret of the certificate.
	Namespace, Secret string
	// Configuration is the ValidatingWebhookConfiguration whose webhooks are
	// served with the certificate.
	Configuration string
	// Hosts are further names that the certificate is for.
	Hosts []string
}

// Controller is the controller of the one certificate.
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

// New returns the controller and registers its event handlers. The informers watch the
// one Secret and the one configuration.
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
	// Without any object there is no event. The first sync logs that.
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
