// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
)

func TestRegistration(t *testing.T) {
	h := newHarness(t)
	h.show()
	require.NoError(t, h.controller.Check())
	h.mustSync(writeKey)
	h.expectState(metav1.ConditionFalse, v1beta1.ReasonNotRegistered, "")
	assert.Zero(t, h.calls("RegisterOperator"), "calls before the key is stored")
	h.mustSync(writeCert)
	requeue := h.mustSync()
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
	h.expectOneRegistration()
	h.expectRegisteredKey()
	cert := h.certificate()
	assert.True(t, cert.own)
	if lifetime := 24 * time.Hour; requeue < lifetime*19/30 || requeue > lifetime*2/3 {
		t.Errorf("the certificate is renewed after %s of %s", requeue, lifetime)
	}
	families, err := h.registry.Gather()
	require.NoError(t, err)
	assert.InDelta(t, float64(cert.leaf.NotAfter.Unix()), families[0].GetMetric()[0].GetGauge().GetValue(), 0)
	assert.True(t, *h.secret(keyName).Immutable, "the key may be replaced by another leader")

	// Later starts need no nonce.
	h.deleteSecret(nonceName)
	h.restart()
	require.NoError(t, h.controller.Check())
	h.mustSync()
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
	assert.Equal(t, 1, h.calls("RegisterOperator"))
}

// If a process exits after any step, the next leader continues.
func TestRegistrationIsResumed(t *testing.T) {
	h := newHarness(t)
	h.failing[keyName] = true
	_, err := h.sync()
	require.ErrorContains(t, err, keyName)
	h.expectState(metav1.ConditionFalse, reasonRegistrationFailed, keyName)
	h.failing[keyName] = false
	h.restart()

	h.mustSync(writeKey)
	key := h.keyOf()
	h.restart()

	// The response of the server is lost, twice.
	h.failing[certName] = true
	for range 2 {
		_, err = h.sync()
		require.ErrorContains(t, err, certName)
		h.restart()
	}
	h.failing[certName] = false
	h.mustSync(writeCert)
	h.restart()
	h.mustSync()
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
	h.expectOneRegistration()
	h.expectRegisteredKey()
	assert.True(t, key.Equal(h.keyOf()), "the key was replaced")
}

func TestRenewal(t *testing.T) {
	h := newHarness(t)
	first := h.register()
	before := first.renewal().Sub(h.FakeClock.Now())
	h.Advance(before - time.Second)
	h.mustSync()
	assert.Zero(t, h.calls("RenewCertificate"), "calls before two thirds of the lifetime")
	h.Advance(2 * time.Second)
	h.mustSync(writeCert)
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
	second := h.certificate()
	assert.True(t, second.own)
	assert.NotEqual(t, first.leaf.SerialNumber, second.leaf.SerialNumber)
	assert.NotEqual(t, first.leaf.PublicKey, second.leaf.PublicKey, "the key is not replaced")
	assert.Equal(t, 1, h.calls("RegisterOperator"))
	h.expectOneRegistration()

	// The stored certificate is not renewed again: its lifetime begins when it was received.
	h.FakeClock.SetTime(time.Now())
	h.mustSync()
	assert.Equal(t, 1, h.calls("RenewCertificate"))
}

// The operator stops after a server has renewed the certificate, and before it has stored it: the
// next leader renews the stored one again, for another key.
func TestARenewalWhoseCertificateIsLost(t *testing.T) {
	h := newHarness(t)
	first := h.register()
	h.FakeClock.SetTime(first.renewal().Add(time.Second))
	h.failing[certName] = true
	_, err := h.sync()
	require.Error(t, err)
	assert.Equal(t, first.leaf.SerialNumber, h.certificate().leaf.SerialNumber)
	h.failing[certName] = false
	h.mustSync(writeCert)
	second := h.certificate()
	assert.NotEqual(t, first.leaf.PublicKey, second.leaf.PublicKey)
	assert.Equal(t, 2, h.calls("RenewCertificate"))
	h.FakeClock.SetTime(time.Now())
	h.mustSync()
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
}

func TestRenewalThatFailsIsReported(t *testing.T) {
	h := newHarness(t)
	cert := h.register()
	h.server.Stop()
	h.FakeClock.SetTime(cert.renewal().Add(time.Second))
	_, err := h.sync()
	require.Error(t, err)
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
	h.FakeClock.SetTime(cert.overdue())
	_, err = h.sync()
	require.Error(t, err)
	h.expectState(metav1.ConditionTrue, reasonRenewalOverdue, "could not be renewed: renew the client certificate: shard "+shardID)
	h.FakeClock.SetTime(cert.expiring())
	_, err = h.sync()
	require.Error(t, err)
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonCertificateExpiring, "could not be renewed")
	h.FakeClock.SetTime(cert.leaf.NotAfter)
	h.mustSync()
	h.expectState(metav1.ConditionFalse, reasonCertificateExpired, "the nonce was used for it")
}

// The operator registers again with a new nonce, without a restart.
func TestExpiredCertificateIsReplaced(t *testing.T) {
	h := newHarness(t)
	cert := h.register()
	h.FakeClock.SetTime(cert.leaf.NotAfter)
	h.deleteSecret(nonceName)
	h.mustSync()
	h.expectState(metav1.ConditionFalse, reasonCertificateExpired, nonceName)
	require.NoError(t, h.controller.Check(), "only a missing certificate keeps the operator from its start")

	h.FakeClock.SetTime(time.Now())
	expired, keyPEM, err := h.server.Authority.IssueClient(pki.Client{ID: servertest.ClusterID, Tenant: tenant, Role: pki.RoleOperator}, -time.Second)
	require.NoError(t, err)
	secret := h.secret(certName)
	secret.Data = map[string][]byte{corev1.TLSCertKey: expired, corev1.TLSPrivateKeyKey: keyPEM}
	_, err = h.KubeClient.CoreV1().Secrets(namespace).Update(h.Ctx, secret, metav1.UpdateOptions{})
	require.NoError(t, err)
	h.setNonce(h.newNonce())
	h.mustSync(writeCert)
	h.mustSync()
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
	assert.Len(t, h.registrations(), 2)
	h.expectRegisteredKey()
}

// rejecting is a cache of groups whose shards reject the certificate.
type rejecting struct {
	shard.Groups
	reachable bool
	err       error
}

func (r *rejecting) Reachable(string) (bool, error) { return r.reachable, r.err }

var unauthenticated = status.Error(codes.Unauthenticated, "the certificate was revoked")

func TestRevokedCertificateIsReplaced(t *testing.T) {
	h := newHarness(t)
	h.register()
	groups := &rejecting{Groups: h.Groups, err: shard.ErrUnknownShard}
	h.controller.groups = groups
	h.mustSync()
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
	groups.err = unauthenticated
	h.mustSync()
	h.expectState(metav1.ConditionFalse, reasonCertificateRejected, "shard us-west-2a: the certificate was revoked; the nonce was used for it")
	h.setNonce(h.newNonce())
	h.mustSync(writeCert)
	groups.reachable = true
	h.mustSync()
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
}

func TestRejectedNonceIsNotSentAgainAtOnce(t *testing.T) {
	h := newHarness(t)
	h.setNonce(h.expiredNonce())
	h.mustSync(writeKey)
	assert.Equal(t, rejectedRetry, h.mustSync())
	h.expectState(metav1.ConditionFalse, reasonNonceRejected, "registration nonce is not valid: it expired at")
	h.Advance(rejectedRetry - time.Second)
	assert.Equal(t, time.Second, h.mustSync())
	h.expectState(metav1.ConditionFalse, reasonNonceRejected, "registration nonce is not valid: it expired at")
	assert.Equal(t, 1, h.calls("RegisterOperator"))
	h.Advance(time.Second)
	h.mustSync()
	assert.Equal(t, 2, h.calls("RegisterOperator"))

	h.setNonce(h.newNonce())
	h.mustSync(writeCert)
}

func TestNonceOfAnotherKeyIsRejected(t *testing.T) {
	h := newHarness(t)
	h.register()
	h.deleteSecret(keyName)
	h.deleteSecret(certName)
	h.mustSync(writeKey)
	h.mustSync()
	h.expectState(metav1.ConditionFalse, reasonNonceRejected, "used with another public key")
	assert.Len(t, h.registrations(), 1)
}

// The certificate that an administrator provides is used and never replaced.
func TestCertificateOfTheAdministratorStays(t *testing.T) {
	h := newHarness(t)
	certPEM, keyPEM := pkitest.Operator(t, h.server.Authority, servertest.ClusterID, tenant)
	h.put(certName, map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM})
	h.mustSync()
	h.expectState(metav1.ConditionTrue, v1beta1.ReasonReady, "")
	cert := h.certificate()
	h.FakeClock.SetTime(cert.overdue())
	h.mustSync()
	h.expectState(metav1.ConditionTrue, reasonRenewalOverdue, "the administrator who provided it renews it")
	h.FakeClock.SetTime(cert.leaf.NotAfter)
	h.mustSync()
	h.expectState(metav1.ConditionFalse, reasonCertificateExpired, "")
	assert.Zero(t, h.calls("RegisterOperator"))

	h.FakeClock.SetTime(time.Now())
	h.put(certName, map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: []byte("x")})
	h.mustSync()
	h.expectState(metav1.ConditionFalse, reasonCertificateInvalid, certName)
	otherPEM, otherKeyPEM := pkitest.Operator(t, pkitest.NewAuthority(t), servertest.ClusterID, tenant)
	h.put(certName, map[string][]byte{corev1.TLSCertKey: otherPEM, corev1.TLSPrivateKeyKey: otherKeyPEM})
	h.mustSync()
	h.expectState(metav1.ConditionFalse, reasonCertificateInvalid, "tls.crt was not issued by the cluster CA")
	// An empty Secret is equal to no Secret.
	h.put(certName, nil)
	h.mustSync(writeKey)
	h.mustSync(writeCert)
	_, err := tls.X509KeyPair(h.secret(certName).Data[corev1.TLSCertKey], h.secret(certName).Data[corev1.TLSPrivateKeyKey])
	assert.NoError(t, err)
}

// The lifetime of a certificate begins when it is received: its validity begins earlier,
// because clocks may be behind.
func TestShortCertificateIsNotRenewedAtOnce(t *testing.T) {
	h := newHarness(t)
	h.register()
	now := h.FakeClock.Now()
	certPEM, keyPEM, err := h.server.Authority.IssueClient(pki.Client{ID: servertest.ClusterID, Tenant: tenant, Role: pki.RoleOperator}, time.Minute)
	require.NoError(t, err)
	require.NoError(t, h.controller.storeCertificate(h.Ctx, issued{Issued: keys.Issued{CertificatePEM: certPEM}, keyPEM: keyPEM, ca: h.ca()}))
	if renewal := h.certificate().renewal().Sub(now); renewal < 36*time.Second || renewal > 41*time.Second {
		t.Errorf("a certificate of a minute is renewed after %s", renewal)
	}
}

func TestUnusableCertificateOfAServerIsNotStored(t *testing.T) {
	h := newHarness(t)
	h.register()
	other := pkitest.NewAuthority(t)
	certPEM, keyPEM := pkitest.Operator(t, other, servertest.ClusterID, tenant)
	require.ErrorContains(t, h.controller.storeCertificate(h.Ctx, issued{Issued: keys.Issued{CertificatePEM: certPEM}, keyPEM: keyPEM, ca: h.ca()}), "another authority")
	require.ErrorContains(t, h.controller.storeCertificate(h.Ctx, issued{Issued: keys.Issued{CertificatePEM: certPEM}, keyPEM: h.secret(certName).Data[corev1.TLSPrivateKeyKey], ca: h.ca()}), "cannot be used")

	// The clock of the operator is a day and an hour ahead.
	h.deleteSecret(certName)
	h.Advance(25 * time.Hour)
	_, err := h.sync()
	require.ErrorContains(t, err, "the clocks differ")
	h.expectState(metav1.ConditionFalse, reasonRegistrationFailed, "the clocks differ")
}

func TestServerOfAnotherShardGetsNoNonce(t *testing.T) {
	h := newHarness(t)
	h.endpoints["us-west-2b"] = h.endpoints[shardID]
	delete(h.endpoints, shardID)
	h.mustSync(writeKey)
	_, err := h.sync()
	require.ErrorContains(t, err, "the server at the address of the shard is nstance://test/us-west-2a, not nstance://test/us-west-2b")
	h.expectState(metav1.ConditionFalse, reasonRegistrationFailed, "us-west-2b")
	assert.Zero(t, h.calls("RegisterOperator"))
}

func TestMissingAndMalformedObjectsEndTheStart(t *testing.T) {
	h := newHarness(t)
	otherTenant := h.newNonce()
	for _, test := range []struct {
		name   string
		change func()
		want   []string
	}{
		{"no nonce", func() { h.deleteSecret(nonceName) }, []string{"default/" + nonceName, nonceKey, "nstance-admin cluster nonce"}},
		{"an empty nonce", func() { h.put(nonceName, nil) }, []string{"default/" + nonceName, nonceKey}},
		{"a malformed nonce", func() { h.setNonce("secret") }, []string{"default/" + nonceName, nonceKey, "not a JSON web token"}},
		{"a nonce of another tenant", func() {
			h.controller.options.Tenant = "blue"
			h.setNonce(otherTenant)
		}, []string{nonceName, `tenant "default"`, "--tenant blue"}},
		{"a nonce of another cluster", func() {
			h.controller.options.Tenant, h.controller.options.ClusterID = tenant, "stage"
		}, []string{nonceName, `cluster "test"`, "--cluster-id stage"}},
		{"a malformed key", func() {
			h.controller.options.ClusterID = servertest.ClusterID
			h.put(keyName, map[string][]byte{privateKeyKey: []byte("secret")})
		}, []string{"default/" + keyName, privateKeyKey, "Ed25519"}},
		{"a malformed CA", func() {
			require.NoError(t, h.KubeClient.CoreV1().ConfigMaps(namespace).Delete(h.Ctx, caName, metav1.DeleteOptions{}))
			h.createCA("x")
		}, []string{"default/" + caName, caKey, "nstance-admin cluster ca"}},
		{"no CA", func() {
			require.NoError(t, h.KubeClient.CoreV1().ConfigMaps(namespace).Delete(h.Ctx, caName, metav1.DeleteOptions{}))
		}, []string{"default/" + caName, caKey}},
	} {
		test.change()
		h.show()
		err := h.controller.Check()
		if !assert.Error(t, err, test.name) {
			continue
		}
		for _, want := range test.want {
			assert.ErrorContains(t, err, want, test.name)
		}
		assert.NotContains(t, err.Error(), "secret", test.name)
		h.mustSync()
		assert.Equal(t, metav1.ConditionFalse, h.controller.State().Status, test.name)
	}
	assert.Zero(t, h.calls("RegisterOperator"))
	assert.False(t, strings.Contains(h.controller.State().Message, otherTenant))
}

// TestTheCAThatAServerSendsIsTrusted: it is stored with the certificate, and counts until the
// administrator changes the ConfigMap.
func TestTheCAThatAServerSendsIsTrusted(t *testing.T) {
	h := newHarness(t)
	h.register()
	old := string(h.server.Authority.CertificatePEM())
	next, err := pki.NewNextAuthority("test")
	require.NoError(t, err)
	both := string(pki.Join(next, h.server.Authority).CertificatePEM())
	certPEM, keyPEM := pkitest.Operator(t, next, servertest.ClusterID, tenant)
	require.NoError(t, h.controller.storeCertificate(h.Ctx, issued{
		Issued: keys.Issued{CertificatePEM: certPEM, AuthoritiesPEM: []byte(both)}, keyPEM: keyPEM, ca: h.ca(),
	}))
	secret := h.secret(certName)
	require.Equal(t, both, string(secret.Data[caKey]))
	require.Equal(t, both, TrustedCA(old, secret))
	require.Equal(t, "another", TrustedCA("another", secret), "the ConfigMap was changed")
	require.Equal(t, old, TrustedCA(old, nil))

	// A server that sends no CA, and one whose certificate has another.
	require.ErrorContains(t, h.controller.storeCertificate(h.Ctx, issued{
		Issued: keys.Issued{CertificatePEM: certPEM, AuthoritiesPEM: []byte(old)}, keyPEM: keyPEM, ca: h.ca(),
	}), "another authority")
	present := &ca{pem: both, configured: digest(old)}
	require.NoError(t, h.controller.storeCertificate(h.Ctx, issued{Issued: keys.Issued{CertificatePEM: certPEM}, keyPEM: keyPEM, ca: present}))
	require.Equal(t, both, TrustedCA(old, h.secret(certName)))
}

func TestTheCertificateIsRenewedWhenTheCAIsReplaced(t *testing.T) {
	now := time.Now()
	leaf := &x509.Certificate{NotAfter: now.Add(20 * time.Hour), SerialNumber: big.NewInt(1)}
	o := observation{cert: &certificate{leaf: leaf, own: true, issued: now.Add(-time.Hour)}}
	require.Zero(t, plan(o, now).step)
	o.outdated = now
	require.Equal(t, renew, plan(o, now).step)
	o.outdated = now.Add(time.Minute)
	require.Equal(t, decision{again: o.outdated}, plan(o, now), "a minute after the last attempt")
	o.cert.own = false
	require.NotEqual(t, renew, plan(o, now.Add(time.Hour)).step, "an administrator's certificate is not renewed")
}

// TestServersLearnWhichCAIsTrusted: the replacement of the CA waits until the servers know that the
// operator trusts the next authority, also if an administrator, and not a server, has made it trusted
// after the last renewal, and if another replica begins to lead between two renewals.
func TestServersLearnWhichCAIsTrusted(t *testing.T) {
	h := newHarness(t)
	h.register()
	next, err := pki.NewNextAuthority("test")
	require.NoError(t, err)
	configMap, err := h.KubeClient.CoreV1().ConfigMaps(namespace).Get(h.Ctx, caName, metav1.GetOptions{})
	require.NoError(t, err)
	configMap.Data[caKey] = string(pki.Join(next, h.server.Authority).CertificatePEM())
	_, err = h.KubeClient.CoreV1().ConfigMaps(namespace).Update(h.Ctx, configMap, metav1.UpdateOptions{})
	require.NoError(t, err)

	h.mustSync(writeCert)
	require.Equal(t, 1, h.calls("RenewCertificate"))
	// The server has not loaded the next authority, and its CA replaces the one in the ConfigMap.
	h.restart()
	h.mustSync(writeCert)
	require.Equal(t, 2, h.calls("RenewCertificate"))
	h.mustSync()

	// A version that did not record it.
	secret := h.secret(certName)
	delete(secret.Annotations, v1beta1.AnnotationShownCA)
	_, err = h.KubeClient.CoreV1().Secrets(namespace).Update(h.Ctx, secret, metav1.UpdateOptions{})
	require.NoError(t, err)
	h.mustSync()
	require.Equal(t, 2, h.calls("RenewCertificate"))
}
