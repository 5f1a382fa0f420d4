// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/controller/apitest"
)

const (
	namespace = "nstance-system"
	host      = "nstance-operator-webhook.nstance-system.svc"

	writeSecret        = "apply secrets nstance-webhook-cert"
	writeConfiguration = "apply validatingwebhookconfigurations nstance-operator"
)

var config = Config{Namespace: namespace, Secret: "nstance-webhook-cert", Configuration: "nstance-operator"}

// harness is a controller whose caches are equal to the API server when it syncs.
type harness struct {
	*kubefake.Clientset

	t              *testing.T
	controller     *Controller
	secrets        cache.SharedIndexInformer
	configurations cache.SharedIndexInformer
	clock          *clocktesting.FakePassiveClock
}

func newHarness(t *testing.T, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{
		Clientset: kubefake.NewClientset(objects...), t: t,
		clock: clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)),
	}
	factory := kubeinformers.NewSharedInformerFactory(h, 0)
	h.secrets = factory.Core().V1().Secrets().Informer()
	h.configurations = factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()
	h.restart()
	return h
}

// restart creates a new controller, as another leader would.
func (h *harness) restart() {
	h.t.Helper()
	c, err := New(config, h, h.secrets, h.configurations, h.clock)
	require.NoError(h.t, err)
	h.controller = c
}

// sync syncs once, without an error, and compares the writes.
func (h *harness) sync(want ...string) time.Duration {
	h.t.Helper()
	h.ClearActions()
	requeue := h.step()
	assert.Equal(h.t, want, apitest.Writes(h), "wrote")
	return requeue
}

// step syncs once, without an error.
func (h *harness) step() time.Duration {
	h.t.Helper()
	h.show()
	ctx := klog.NewContext(h.t.Context(), ktesting.NewLogger(h.t, ktesting.NewConfig()))
	requeue, err := h.controller.sync(ctx, h.controller.secretKey())
	require.NoError(h.t, err)
	return requeue
}

func (h *harness) show() {
	h.t.Helper()
	var secrets, configurations []any
	if secret := h.secret(); secret != nil {
		secrets = append(secrets, secret)
	}
	if configuration := h.configuration(); configuration != nil {
		configurations = append(configurations, configuration)
	}
	for informer, objects := range map[cache.SharedIndexInformer][]any{h.secrets: secrets, h.configurations: configurations} {
		require.NoError(h.t, informer.GetStore().Replace(objects, ""))
	}
}

// secret returns the Secret, nil if it does not exist.
func (h *harness) secret() *corev1.Secret {
	h.t.Helper()
	secret, err := h.CoreV1().Secrets(namespace).Get(h.t.Context(), config.Secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(h.t, err)
	return secret
}

// configuration returns the webhook configuration, nil if it does not exist.
func (h *harness) configuration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	h.t.Helper()
	configuration, err := h.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(h.t.Context(), config.Configuration, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(h.t, err)
	return configuration
}

// edit changes the Secret as another client does.
func (h *harness) edit(change func(data map[string][]byte)) {
	h.t.Helper()
	secret := h.secret()
	change(secret.Data)
	_, err := h.CoreV1().Secrets(namespace).Update(h.t.Context(), secret, metav1.UpdateOptions{})
	require.NoError(h.t, err)
}

// editConfiguration changes the webhook configuration as another client does.
func (h *harness) editConfiguration(change func(webhooks []admissionregistrationv1.ValidatingWebhook)) {
	h.t.Helper()
	configuration := h.configuration()
	change(configuration.Webhooks)
	_, err := h.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(h.t.Context(), configuration, metav1.UpdateOptions{})
	require.NoError(h.t, err)
}

// pair returns the serving certificate and its key.
func (h *harness) pair() *tls.Certificate {
	h.t.Helper()
	secret := h.secret()
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	require.NoError(h.t, err)
	return &pair
}

// call calls the webhook as an API server would now.
func (h *harness) call(host string) error {
	h.t.Helper()
	return handshake(h.clock.Now(), h.configuration().Webhooks[0].ClientConfig.CABundle, h.pair(), host)
}

func (h *harness) expectCalled(host string) {
	h.t.Helper()
	assert.NoError(h.t, h.call(host), "the webhook cannot be called at %s", host)
}

// handshake connects a client that trusts only bundle with a server.
func handshake(now time.Time, bundle []byte, pair *tls.Certificate, host string) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	listener := bufconn.Listen(1 << 16)
	defer func() { _ = listener.Close() }()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_ = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*pair}, MinVersion: tls.VersionTLS13}).Handshake()
	}()
	conn, err := listener.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: host, Time: func() time.Time { return now }}).Handshake()
}

// installed returns the configuration of the manifests.
func installed() *admissionregistrationv1.ValidatingWebhookConfiguration {
	return newConfiguration(
		admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
			Namespace: namespace, Name: "nstance-operator-webhook", Path: ptr.To("/validate"),
		}},
		admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
			Namespace: namespace, Name: "nstance-operator-webhook", Path: ptr.To("/validate"),
		}},
	)
}

func newConfiguration(clients ...admissionregistrationv1.WebhookClientConfig) *admissionregistrationv1.ValidatingWebhookConfiguration {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: config.Configuration, UID: "uid"}}
	for i, client := range clients {
		configuration.Webhooks = append(configuration.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name:         string(rune('a'+i)) + ".nstance.dev",
			ClientConfig: client,
			SideEffects:  ptr.To(admissionregistrationv1.SideEffectClassNone),
		})
	}
	return configuration
}
