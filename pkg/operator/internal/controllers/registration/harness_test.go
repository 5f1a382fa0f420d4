// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"maps"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/controller/apitest"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	shardID   = "us-west-2a"
	tenant    = "default"
	namespace = controllertest.Namespace

	caName    = "nstance-cluster-ca"
	nonceName = "nstance-operator-nonce"
	keyName   = "nstance-operator-key"
	certName  = "nstance-operator-cert"

	writeKey  = "apply secrets " + keyName
	writeCert = "apply secrets " + certName
)

// harness is a controller with an API server and a real shard server.
type harness struct {
	*controllertest.Harness
	controller *Controller
	server     *servertest.Server
	keys       *clusterkeys.Keys
	endpoints  endpoints
	// pool connects with the certificate in the Secret.
	pool     *connpool.Pool
	identity *identity.Identity

	registry            *prometheus.Registry
	configMaps, secrets cache.SharedIndexInformer
	// failing are the names of Secrets that cannot be written.
	failing map[string]bool
	writes  []string
}

// endpoints implements Endpoints, and never changes.
type endpoints map[string]shard.Endpoint

func (e endpoints) Endpoints() map[string]shard.Endpoint { return e }
func (e endpoints) AddHandler(func(string))              {}

// newHarness returns a harness with a CA and a nonce.
func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{
		Harness:  controllertest.NewHarness(t, shardtest.New()),
		server:   servertest.Start(t, servertest.Options{}),
		identity: &identity.Identity{},
		failing:  map[string]bool{},
	}
	// The server uses the real clock.
	h.FakeClock.SetTime(time.Now())
	var err error
	h.keys, err = clusterkeys.Load(t.Context(), h.server.Storage, h.server.Secrets)
	require.NoError(t, err)
	h.endpoints = endpoints{shardID: {Operator: h.server.Addr, Registration: h.server.RegistrationAddr}}
	h.pool = connpool.New(connpool.Options{Credentials: h.identity.Credentials(servertest.ClusterID)})
	h.pool.Set(h.endpoints)
	runtest.Start(t, func(ctx context.Context) {
		h.pool.Run(ctx, func(ctx context.Context, _ string, _ nstancev1.OperatorServiceClient) { <-ctx.Done() })
	})
	core := kubeinformers.NewSharedInformerFactory(h.KubeClient, 0).Core().V1()
	h.configMaps, h.secrets = core.ConfigMaps().Informer(), core.Secrets().Informer()
	h.KubeClient.PrependReactor("patch", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.PatchAction).GetName()
		if h.failing[name] {
			return true, nil, apierrors.NewInternalError(assert.AnError)
		}
		h.writes = append(h.writes, apitest.Describe(action))
		return false, nil, nil
	})
	h.restart()
	h.createCA(string(h.server.Authority.CertificatePEM()))
	h.setNonce(h.newNonce())
	return h
}

// restart replaces the controller.
func (h *harness) restart() {
	h.T.Helper()
	h.registry = prometheus.NewRegistry()
	h.Metrics = h.registry
	c, err := New(h.Dependencies, Options{
		ClusterID: servertest.ClusterID, Tenant: tenant,
		CAConfigMap: caName, NonceSecret: nonceName, KeySecret: keyName, CertSecret: certName,
		CA: h.configMaps, Nonce: h.secrets, Key: h.secrets, Cert: h.secrets,
		Endpoints: h.endpoints, Renewer: h.pool,
		Credentials: func(authorities *x509.CertPool, shard string) credentials.TransportCredentials {
			return identity.AnonymousCredentials(authorities, servertest.ClusterID, shard, false)
		},
	})
	require.NoError(h.T, err)
	h.controller = c
}

// newNonce returns a nonce of the server's cluster.
func (h *harness) newNonce() string {
	h.T.Helper()
	token, err := registration.NewNonceSigner(h.keys.Nonce).Operator(registration.OperatorNonce{ClusterID: servertest.ClusterID, Tenant: tenant, Lifetime: time.Hour})
	require.NoError(h.T, err)
	return token
}

// expiredNonce returns a nonce that expired a minute ago.
func (h *harness) expiredNonce() string {
	h.T.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"kind": "operator", "sub": servertest.ClusterID, "cluster_id": servertest.ClusterID, "tenant": tenant,
		"exp": time.Now().Add(-time.Minute).Unix(),
	}).SignedString(h.keys.Nonce)
	require.NoError(h.T, err)
	return token
}

func (h *harness) createCA(content string) {
	h.T.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: caName, Namespace: namespace}, Data: map[string]string{caKey: content}}
	_, err := h.KubeClient.CoreV1().ConfigMaps(namespace).Create(h.Ctx, object, metav1.CreateOptions{})
	require.NoError(h.T, err)
}

func (h *harness) setNonce(token string) {
	h.T.Helper()
	h.put(nonceName, map[string][]byte{nonceKey: []byte(token)})
}

// put replaces a Secret.
func (h *harness) put(name string, data map[string][]byte) {
	h.T.Helper()
	h.deleteSecret(name)
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Data: data}
	_, err := h.KubeClient.CoreV1().Secrets(namespace).Create(h.Ctx, object, metav1.CreateOptions{})
	require.NoError(h.T, err)
}

func (h *harness) deleteSecret(name string) {
	h.T.Helper()
	err := h.KubeClient.CoreV1().Secrets(namespace).Delete(h.Ctx, name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(h.T, err)
	}
}

// secret returns a Secret, nil if it does not exist.
func (h *harness) secret(name string) *corev1.Secret {
	h.T.Helper()
	secret, err := h.KubeClient.CoreV1().Secrets(namespace).Get(h.Ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(h.T, err)
	return secret
}

// show makes the caches, and the certificate of the pool, equal to the API server.
func (h *harness) show() {
	h.T.Helper()
	configMaps, err := h.KubeClient.CoreV1().ConfigMaps(namespace).List(h.Ctx, metav1.ListOptions{})
	require.NoError(h.T, err)
	secrets, err := h.KubeClient.CoreV1().Secrets(namespace).List(h.Ctx, metav1.ListOptions{})
	require.NoError(h.T, err)
	var cachedConfigMaps, cachedSecrets []any
	for i := range configMaps.Items {
		cachedConfigMaps = append(cachedConfigMaps, &configMaps.Items[i])
	}
	for i := range secrets.Items {
		cachedSecrets = append(cachedSecrets, &secrets.Items[i])
		if secret := secrets.Items[i]; secret.Name == certName {
			// The Secret of a test may have any content.
			_ = h.identity.Set(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], h.server.Authority.CertificatePEM())
		}
	}
	require.NoError(h.T, h.configMaps.GetStore().Replace(cachedConfigMaps, ""))
	require.NoError(h.T, h.secrets.GetStore().Replace(cachedSecrets, ""))
}

// sync updates the caches, syncs once and compares the writes.
func (h *harness) sync(want ...string) (requeue time.Duration, err error) {
	h.T.Helper()
	h.show()
	h.writes = nil
	requeue, err = h.controller.sync(h.Ctx, h.controller.certKey())
	assert.Equal(h.T, want, h.writes, "wrote")
	return requeue, err
}

// mustSync calls sync, which must succeed.
func (h *harness) mustSync(want ...string) time.Duration {
	h.T.Helper()
	requeue, err := h.sync(want...)
	require.NoError(h.T, err)
	return requeue
}

// register syncs until a certificate is stored, and returns it.
func (h *harness) register() *certificate {
	h.T.Helper()
	h.mustSync(writeKey)
	h.mustSync(writeCert)
	h.mustSync()
	return h.certificate()
}

// ca returns the CA of the server, as the controller reads it.
func (h *harness) ca() *ca {
	h.T.Helper()
	caPEM := string(h.server.Authority.CertificatePEM())
	ca, problem := parseCA("", &corev1.ConfigMap{Data: map[string]string{caKey: caPEM}}, nil)
	require.Nil(h.T, problem)
	return ca
}

// certificate reads the Secret as the controller does.
func (h *harness) certificate() *certificate {
	h.T.Helper()
	authorities := h.ca().pool
	cert, problem := parseCertificate("", h.secret(certName), authorities)
	require.Nil(h.T, problem)
	require.NotNil(h.T, cert)
	return cert
}

// expectState compares the state, with a part of its message.
func (h *harness) expectState(status metav1.ConditionStatus, reason, message string) {
	h.T.Helper()
	state := h.controller.State()
	assert.Equal(h.T, status, state.Status, "%+v", state)
	assert.Equal(h.T, reason, state.Reason, "%+v", state)
	assert.Contains(h.T, state.Message, message)
}

// registrations returns the nonces that the server has accepted, by the public key.
func (h *harness) registrations() map[string]string {
	h.T.Helper()
	infos, err := h.server.Storage.List(h.Ctx, "operator-nonce/")
	require.NoError(h.T, err)
	claims := map[string]string{}
	for _, info := range infos {
		object, err := h.server.Storage.Get(h.Ctx, info.Key)
		require.NoError(h.T, err)
		claims[info.Key] = string(object.Data)
	}
	return claims
}

// calls returns how many calls of a method the server has received.
func (h *harness) calls(method string) int { return len(h.server.Calls(method)) }

// keyOf returns the key in the Secret.
func (h *harness) keyOf() ed25519.PrivateKey {
	h.T.Helper()
	key, problem := parseKey(keyName, h.secret(keyName))
	require.Nil(h.T, problem)
	return key
}

// expectOneRegistration checks that one nonce was used, with the stored key.
func (h *harness) expectOneRegistration() {
	h.T.Helper()
	claims := h.registrations()
	require.Len(h.T, claims, 1)
	for claim := range maps.Values(claims) {
		assert.Equal(h.T, string(h.secret(keyName).Data[publicKeyKey]), claim)
	}
}

// expectRegisteredKey checks that the certificate is for the key in its own Secret, as it is after
// a registration.
func (h *harness) expectRegisteredKey() {
	h.T.Helper()
	assert.Equal(h.T, h.keyOf().Public(), h.certificate().leaf.PublicKey, "the certificate is for another key")
}
