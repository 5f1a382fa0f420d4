// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
)

// issuer makes the objects that hold the operator's identity.
type issuer struct {
	t         *testing.T
	authority *pki.Authority
}

func newIssuer(t *testing.T) issuer {
	t.Helper()
	return issuer{t, pkitest.NewAuthority(t)}
}

func (i issuer) ca() *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{caKey: string(i.authority.CertificatePEM())}}
}

// cert is a client certificate that names id.
func (i issuer) cert(id string) *corev1.Secret {
	i.t.Helper()
	cert, key := pkitest.Operator(i.t, i.authority, id, "default")
	return &corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}}
}

// clientOf is the name in the client certificate that a server of this issuer
// is shown, "" when the handshake fails.
func (i issuer) clientOf(c *configuration) string {
	i.t.Helper()
	config := pki.NewServing(i.authority, pki.Names{Hosts: []string{"127.0.0.1"}}).Config()
	config.ClientAuth = tls.RequireAnyClientCert
	address, clients := pkitest.Listen(i.t, config)
	conn, err := net.Dial("tcp", address)
	require.NoError(i.t, err)
	defer func() { _ = conn.Close() }()
	if _, _, err := c.identity.Credentials("prod")("a").ClientHandshake(i.t.Context(), address, conn); err != nil {
		return ""
	}
	return <-clients
}

func TestIdentityFollowsTheCertificate(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	issuer := newIssuer(t)
	c.setCert(ctx, issuer.cert("first"))
	if got := issuer.clientOf(c); got != "" {
		t.Errorf("without a CA the server saw %q", got)
	}
	c.setCA(ctx, issuer.ca())
	if got := issuer.clientOf(c); got != "first" {
		t.Errorf("the server saw %q", got)
	}
	c.setCert(ctx, issuer.cert("second"))
	if got := issuer.clientOf(c); got != "second" {
		t.Errorf("after the rotation the server saw %q", got)
	}
}

func TestIdentityStaysWhenItsObjectsAreGoneOrWrong(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	issuer := newIssuer(t)
	c.setCA(ctx, issuer.ca())
	c.setCert(ctx, issuer.cert("first"))
	mixed := issuer.cert("mixed")
	mixed.Data[corev1.TLSCertKey] = issuer.cert("other").Data[corev1.TLSCertKey]
	for name, change := range map[string]func(){
		"the Secret was deleted":                 func() { c.setCert(ctx, nil) },
		"the ConfigMap was deleted":              func() { c.setCA(ctx, nil) },
		"the Secret is empty":                    func() { c.setCert(ctx, &corev1.Secret{}) },
		"the ConfigMap is empty":                 func() { c.setCA(ctx, &corev1.ConfigMap{}) },
		"the key belongs to another certificate": func() { c.setCert(ctx, mixed) },
		"the certificate is not one": func() {
			c.setCert(ctx, &corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y")}})
		},
	} {
		change()
		if got := issuer.clientOf(c); got != "first" {
			t.Errorf("%s: the server saw %q", name, got)
		}
	}
	// What was missing for a while does not keep a rotation away.
	c.setCA(ctx, &corev1.ConfigMap{})
	c.setCert(ctx, issuer.cert("second"))
	if got := issuer.clientOf(c); got != "second" {
		t.Errorf("the server saw %q", got)
	}
}

func TestIdentityFollowsTheCA(t *testing.T) {
	c, _, ctx := startConfiguration(t)
	before, after := newIssuer(t), newIssuer(t)
	c.setCA(ctx, before.ca())
	c.setCert(ctx, before.cert("client"))
	if got := after.clientOf(c); got != "" {
		t.Errorf("a server of another CA saw %q", got)
	}
	c.setCA(ctx, after.ca())
	if got := after.clientOf(c); got != "client" {
		t.Errorf("a server of the new CA saw %q", got)
	}
}
