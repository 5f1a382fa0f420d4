// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package registration gets the operator its client certificate and renews it: a key
// is created and stored, then exchanged with a nonce for a certificate at the shard
// servers, and the certificate is stored (docs/protocol.md#registration). Each step
// begins with what the one before has stored, so a process that exits between any two
// of them is continued by the next leader.
package registration

import (
	"context"
	"crypto/x509"
	"sync"

	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// Options are the inputs of New beside the dependencies of all controllers.
type Options struct {
	// ClusterID and Tenant are the identity in the certificate.
	ClusterID, Tenant string
	// CAConfigMap, NonceSecret, KeySecret and CertSecret are the names of the objects.
	CAConfigMap, NonceSecret, KeySecret, CertSecret string
	// CA, Nonce, Key and Cert are the informers of these objects.
	CA, Nonce, Key, Cert cache.SharedIndexInformer
	// Endpoints are the addresses of the shards.
	Endpoints Endpoints
	// Credentials returns those of a client without a certificate that verifies the servers
	// of a shard.
	Credentials func(authorities *x509.CertPool, shard string) credentials.TransportCredentials
	// Renewer calls the shards with the present certificate.
	Renewer Renewer
}

// Endpoints are the configured endpoints of the shards.
type Endpoints interface {
	// Endpoints returns the valid endpoints by shard id.
	Endpoints() map[string]shard.Endpoint
	// AddHandler registers handler, which is called when they changed.
	AddHandler(handler func(shard string))
}

// Renewer renews the certificate with which it calls a shard.
type Renewer interface {
	// RenewCertificate returns a certificate, PEM, for a public key, PEM. Only the
	// server that leads the cluster issues one; others return FailedPrecondition.
	RenewCertificate(ctx context.Context, shard string, publicKeyPEM []byte) ([]byte, error)
}

// Controller is the controller of the operator's certificate. It runs on the leader.
type Controller struct {
	controller.Registrations
	options   Options
	namespace string

	secrets corev1client.SecretInterface
	groups  shard.Groups
	clock   clock.PassiveClock
	metrics *metrics
	queue   *controller.Queue[cache.ObjectName]

	keyWrites, certWrites *controller.WriteTracker
	// rejected is the last nonce that a server rejected. Only the one worker uses it.
	rejected rejection

	mu       sync.Mutex
	state    metav1.Condition
	handlers []func()
}

// New returns a controller that has registered its handlers.
func New(d controllers.Dependencies, o Options) (*Controller, error) {
	c := &Controller{
		options:    o,
		namespace:  d.Namespace,
		secrets:    d.Kube.CoreV1().Secrets(d.Namespace),
		groups:     d.Groups,
		clock:      d.Clock,
		metrics:    newMetrics(d.Metrics),
		keyWrites:  controller.NewWriteTracker(o.Key.GetStore()),
		certWrites: controller.NewWriteTracker(o.Cert.GetStore()),
	}
	c.queue = controller.NewQueue("registration", c.sync)
	secretChanged := controller.OnChange(func(_, _ *corev1.Secret) { c.enqueue() })
	var err error
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "the cluster CA", Informer: o.CA,
			Handler: controller.OnChange(func(_, _ *corev1.ConfigMap) { c.enqueue() })},
		controller.Watched{What: "the registration nonce", Informer: o.Nonce, Handler: secretChanged},
		controller.Watched{What: "the key of the client certificate", Informer: o.Key, Handler: secretChanged},
		controller.Watched{What: "the client certificate", Informer: o.Cert, Handler: secretChanged},
	)
	if err != nil {
		return nil, err
	}
	o.Endpoints.AddHandler(func(string) { c.enqueue() })
	// A shard may reject the certificate, and a shard that is reachable accepts it.
	d.Groups.AddHandler(shard.GroupHandler{OnShard: func(string) { c.enqueue() }})
	// Without any object there is no event.
	c.enqueue()
	return c, nil
}

// Run syncs the certificate until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, 1) }

// Check returns an error if an administrator must create or correct an object before
// the operator can have a certificate. The caches must be complete.
func (c *Controller) Check() error {
	observed, err := c.observe()
	if err != nil {
		return err
	}
	blocked := plan(observed, c.clock.Now()).blocked
	if blocked == nil {
		return nil
	}
	switch blocked.reason {
	case reasonCAMissing, reasonCAInvalid, reasonNonceMissing, reasonNonceInvalid, reasonKeyInvalid:
		return blocked
	}
	return nil
}

func (c *Controller) enqueue() { c.queue.Add(c.certKey()) }

// certKey is the only key in the queue.
func (c *Controller) certKey() cache.ObjectName {
	return cache.NewObjectName(c.namespace, c.options.CertSecret)
}

func (c *Controller) keyKey() cache.ObjectName {
	return cache.NewObjectName(c.namespace, c.options.KeySecret)
}
