// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package registration obtains the client certificate of the operator and renews it. It
// creates and stores a key, exchanges a nonce for a certificate at the shard servers, and
// stores the certificate (docs/protocol.md#registration). Each step begins with the stored
// result of the previous step, so that the next leader can continue after a crash.
package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// Options are the settings that only this controller has.
type Options struct {
	// ClusterID and Tenant are the identity in the certificate.
	ClusterID, Tenant string
	// CAConfigMap, NonceSecret, KeySecret and CertSecret are the names of the objects.
	CAConfigMap, NonceSecret, KeySecret, CertSecret string
	// CA, Nonce, Key and Cert are informers that watch only these objects.
	CA, Nonce, Key, Cert cache.SharedIndexInformer
	// Endpoints returns the addresses at which the operator registers.
	Endpoints Endpoints
	// Credentials returns the credentials of a client without a certificate that verifies the
	// servers of a shard.
	Credentials func(authorities *x509.CertPool, shard string) credentials.TransportCredentials
	// Renewer calls the shards with the present certificate.
	Renewer Renewer
	// Outdated reports whether a server has shown that the CA of the cluster is being replaced.
	// HandshakeHandler registers a function that is called when its result may have changed. Both
	// are nil if the operator does not observe the servers.
	Outdated         func() bool
	HandshakeHandler func(handler func())
}

// Endpoints is implemented by the configuration of the operator.
type Endpoints interface {
	// Endpoints returns the valid endpoints by shard id.
	Endpoints() map[string]shard.Endpoint
	// AddHandler registers handler, which is called when the endpoints have changed.
	AddHandler(handler func(shard string))
}

// Renewer is implemented by connpool.Pool.
type Renewer interface {
	// RenewCertificate returns a new certificate for a key. Only the
	// server of the cluster's leader issues certificates; others return FailedPrecondition.
	RenewCertificate(ctx context.Context, shard string, request keys.Request) (keys.Issued, error)
}

// Controller manages the operator's certificate. It runs on the leader, with one worker.
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
	// rejected is the last nonce that a server rejected. Only the worker uses it.
	rejected rejection
	// outdated is observation.outdated. Only the worker uses it.
	outdated time.Time

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
	if o.HandshakeHandler != nil {
		o.HandshakeHandler(c.enqueue)
	}
	// A shard may begin to accept or to reject the certificate.
	d.Groups.AddHandler(shard.GroupHandler{OnShard: func(string) { c.enqueue() }})
	// If no object exists, no event arrives.
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

// certKey returns the key of the Secret with the certificate, the only key in the queue.
func (c *Controller) certKey() cache.ObjectName {
	return cache.NewObjectName(c.namespace, c.options.CertSecret)
}

func (c *Controller) keyKey() cache.ObjectName {
	return cache.NewObjectName(c.namespace, c.options.KeySecret)
}

// rejectedRetry is the delay before a rejected nonce is sent again.
const rejectedRetry = 5 * time.Minute

func (c *Controller) sync(ctx context.Context, _ cache.ObjectName) (time.Duration, error) {
	if !c.keyWrites.CaughtUp(c.keyKey()) || !c.certWrites.CaughtUp(c.certKey()) {
		return max(c.keyWrites.Delay(c.keyKey()), c.certWrites.Delay(c.certKey())), nil
	}
	observed, err := c.observe()
	if err != nil {
		return 0, err
	}
	now := c.clock.Now()
	switch outdated := c.isOutdated(); {
	case outdated && c.outdated.IsZero():
		c.outdated = now
	case !outdated && c.outdated.After(now):
		// The renewal before has helped.
		c.outdated = time.Time{}
	}
	observed.outdated = c.outdated
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
	o.ca, o.caProblem = parseCA(c.name(c.options.CAConfigMap), ca, secrets[c.options.CertSecret])
	o.key, o.keyProblem = parseKey(c.name(c.options.KeySecret), secrets[c.options.KeySecret])
	o.nonce, o.nonceProblem = parseNonce(c.name(c.options.NonceSecret), secrets[c.options.NonceSecret], c.options.ClusterID, c.options.Tenant)
	if o.caProblem == nil {
		o.cert, o.certProblem = parseCertificate(c.name(c.options.CertSecret), secrets[c.options.CertSecret], o.ca.pool)
	}
	o.refused = c.refused()
	return o, nil
}

func (c *Controller) name(object string) string { return c.namespace + "/" + object }

// secret returns a Secret from the cache of an informer, nil if it does not exist.
func (c *Controller) secret(informer cache.SharedIndexInformer, name string) (*corev1.Secret, error) {
	return controller.GetCached(corev1listers.NewSecretLister(informer.GetIndexer()).Secrets(c.namespace).Get,
		"Secret", cache.NewObjectName(c.namespace, name))
}

// refused returns the error text of a shard that rejects the certificate, "" if no shard
// rejects it or a shard accepts it.
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

// createKey creates a key and stores it. It is used only after the cache shows it, so that no
// certificate is requested for a key that is lost.
func (c *Controller) createKey(ctx context.Context) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("generate the key of the client certificate: %w", err)
	}
	return c.storeKey(ctx, key)
}

// register exchanges the nonce for a certificate.
func (c *Controller) register(ctx context.Context, o observation) error {
	request, err := keys.NewRequest(o.key)
	if err != nil {
		return err
	}
	request.TrustedAuthorities = authorities.Fingerprints([]byte(o.ca.pem))
	response, err := c.registerAtShards(ctx, o.ca.pool, o.nonce, request)
	if err != nil {
		return err
	}
	keyPEM, err := keys.EncodePrivate(o.key)
	if err != nil {
		return fmt.Errorf("encode the key of the client certificate: %w", err)
	}
	return c.storeCertificate(ctx, issued{Issued: response, keyPEM: keyPEM, nonce: digest(o.nonce), ca: o.ca})
}

// Reasons of the condition IdentityReady. docs/reference.md describes what to do.
const (
	reasonCAMissing    = "CAMissing"
	reasonCAInvalid    = "CAInvalid"
	reasonNonceMissing = "NonceMissing"
	reasonNonceInvalid = "NonceInvalid"
	// reasonNonceRejected: a server does not accept the nonce; the message is the server's.
	reasonNonceRejected = "NonceRejected"
	reasonKeyInvalid    = "KeyInvalid"
	// reasonRegistrationFailed: no server that issues certificates could be reached.
	reasonRegistrationFailed = "RegistrationFailed"
	// reasonCertificateInvalid: the Secret has no usable certificate.
	reasonCertificateInvalid = "CertificateInvalid"
	reasonCertificateExpired = "CertificateExpired"
	// reasonCertificateRejected: the shards do not accept the certificate, for example
	// because it was revoked.
	reasonCertificateRejected = "CertificateRejected"
	// reasonRenewalOverdue: less than a third of the certificate's lifetime is left.
	reasonRenewalOverdue = "RenewalOverdue"
)

// State returns status, reason and message of the condition IdentityReady after the last sync.
// The status is empty before the first sync.
func (c *Controller) State() metav1.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// AddHandler registers handler, which is called when State has changed. It must be called
// before Run.
func (c *Controller) AddHandler(handler func()) {
	c.handlers = append(c.handlers, handler)
}

func (c *Controller) setState(state metav1.Condition) {
	c.mu.Lock()
	changed := c.state != state
	c.state = state
	c.mu.Unlock()
	if changed {
		for _, handler := range c.handlers {
			handler()
		}
	}
}

// newState returns the state after a sync. err is the error of the decided step.
func newState(o observation, decided decision, err error, now time.Time) metav1.Condition {
	ready := metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReady}
	notReady := func(reason, message string) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	switch {
	case decided.blocked != nil:
		return notReady(decided.blocked.reason, decided.blocked.message)
	case decided.step == register && nonceRejected(err):
		return notReady(reasonNonceRejected, shard.Message(err))
	case (decided.step == createKey || decided.step == register) && err != nil:
		return notReady(reasonRegistrationFailed, err.Error())
	case decided.step == createKey, decided.step == register:
		return notReady(v1beta1.ReasonNotRegistered, "the operator is registering")
	case now.Before(o.cert.overdue()) || decided.step == renew && err == nil:
		return ready
	}
	message := fmt.Sprintf("the certificate expires at %s", format(o.cert.leaf.NotAfter))
	switch {
	case err != nil:
		message += " and could not be renewed: " + err.Error()
	case !o.cert.own:
		message += "; the administrator who provided it renews it"
	}
	if now.Before(o.cert.expiring()) {
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonRenewalOverdue, Message: message}
	}
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonCertificateExpiring, Message: message}
}

type metrics struct {
	expiry prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{expiry: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "nstance_operator_certificate_expiration_timestamp_seconds",
		Help: "Time at which the operator's client certificate expires, in seconds since 1970; 0 while there is none. Only the leader sets it.",
	})}
	registry.MustRegister(m.expiry)
	return m
}

func (m *metrics) observe(cert *certificate) {
	if cert == nil || cert.leaf == nil {
		m.expiry.Set(0)
		return
	}
	m.expiry.Set(float64(cert.leaf.NotAfter.Unix()))
}
