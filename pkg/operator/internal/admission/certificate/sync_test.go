// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

func TestSyncIssuesTheCertificateOnce(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	h.expectCalled(host)
	h.sync()
	h.restart()
	h.sync()
	if keys := slices.Sorted(maps.Keys(h.secret().Data)); !slices.Equal(keys, []string{"ca.crt", "ca.key", "tls.crt", "tls.key"}) {
		t.Errorf("the Secret has %q", keys)
	}
	if life := h.pair().Leaf.NotAfter.Sub(h.clock.Now()); life != servingLifetime {
		t.Errorf("the certificate is good for %s", life)
	}
}

func TestSyncDoesNothingWithoutAWebhook(t *testing.T) {
	for name, h := range map[string]*harness{
		"no configuration": newHarness(t),
		"no webhooks":      newHarness(t, newConfiguration()),
	} {
		if requeue := h.sync(); requeue != 0 {
			t.Errorf("%s: synced again after %s", name, requeue)
		}
	}
}

// TestSyncOwnsOnlyTheBundles: the controller owns only the bundles of the
// configuration, and does not create one that was deleted in the meantime.
func TestSyncOwnsOnlyTheBundles(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	var sent any
	for _, action := range h.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok && patch.GetResource().Resource == "validatingwebhookconfigurations" {
			require.NoError(t, json.Unmarshal(patch.GetPatch(), &sent))
		}
	}
	bundle, err := json.Marshal(h.secret().Data["ca.crt"])
	require.NoError(t, err)
	got, err := json.Marshal(sent)
	require.NoError(t, err)
	want := `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration",` +
		`"metadata":{"name":"nstance-operator","uid":"uid"},"webhooks":[` +
		`{"clientConfig":{"caBundle":` + string(bundle) + `},"name":"a.nstance.dev"},` +
		`{"clientConfig":{"caBundle":` + string(bundle) + `},"name":"b.nstance.dev"}]}`
	if string(got) != want {
		t.Errorf("sent %s\nwant %s", got, want)
	}
}

func TestSyncRepairsTheSecret(t *testing.T) {
	other := newHarness(t, installed())
	other.sync(writeSecret, writeConfiguration)
	foreign := other.secret().Data
	for name, test := range map[string]struct {
		damage func(data map[string][]byte)
		want   []string
		// keeps reports whether the trusted authorities stay the same.
		keeps bool
	}{
		"no certificate":           {func(d map[string][]byte) { delete(d, "tls.crt") }, []string{writeSecret}, true},
		"half a certificate":       {func(d map[string][]byte) { d["tls.crt"] = d["tls.crt"][:100] }, []string{writeSecret}, true},
		"another's certificate":    {func(d map[string][]byte) { d["tls.crt"], d["tls.key"] = foreign["tls.crt"], foreign["tls.key"] }, []string{writeSecret}, true},
		"no key":                   {func(d map[string][]byte) { delete(d, "tls.key") }, []string{writeSecret}, true},
		"another's key":            {func(d map[string][]byte) { d["tls.key"] = foreign["tls.key"] }, []string{writeSecret}, true},
		"a certificate for a key":  {func(d map[string][]byte) { d["tls.key"] = d["tls.crt"] }, []string{writeSecret}, true},
		"a comment":                {func(d map[string][]byte) { d["ca.crt"] = append([]byte("# mine\n"), d["ca.crt"]...) }, []string{writeSecret}, true},
		"a leaf as an authority":   {func(d map[string][]byte) { d["ca.crt"] = slices.Concat(d["ca.crt"], d["tls.crt"]) }, []string{writeSecret}, true},
		"no authorities":           {func(d map[string][]byte) { delete(d, "ca.crt") }, []string{writeSecret, writeConfiguration}, false},
		"half an authority":        {func(d map[string][]byte) { d["ca.crt"] = d["ca.crt"][:100] }, []string{writeSecret, writeConfiguration}, false},
		"another's authority":      {func(d map[string][]byte) { d["ca.crt"] = foreign["ca.crt"] }, []string{writeSecret, writeConfiguration}, false},
		"no authority, but a leaf": {func(d map[string][]byte) { d["ca.crt"] = d["tls.crt"] }, []string{writeSecret, writeConfiguration}, false},
		"no authority's key":       {func(d map[string][]byte) { delete(d, "ca.key") }, []string{writeSecret, writeConfiguration}, true},
		"another's authority key":  {func(d map[string][]byte) { d["ca.key"] = foreign["ca.key"] }, []string{writeSecret, writeConfiguration}, true},
		"everything":               {func(d map[string][]byte) { clear(d) }, []string{writeSecret, writeConfiguration}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, installed())
			h.sync(writeSecret, writeConfiguration)
			before := h.secret().Data["ca.crt"]
			h.edit(test.damage)
			h.sync(test.want...)
			h.expectCalled(host)
			if keeps := bytes.Contains(h.secret().Data["ca.crt"], before); keeps != test.keeps {
				t.Errorf("the authority that was trusted stays: %t, want %t", keeps, test.keeps)
			}
			h.sync()
		})
	}
}

// TestSyncKeepsServingUntilNewAuthorityIsTrusted: the certificate of an authority
// stays in use after the authority's key was lost.
func TestSyncKeepsServingUntilNewAuthorityIsTrusted(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	trusted, served := h.configuration().Webhooks[0].ClientConfig.CABundle, h.pair()
	h.edit(func(data map[string][]byte) { delete(data, "ca.key") })
	h.sync(writeSecret, writeConfiguration)
	if !bytes.Equal(h.pair().Leaf.Raw, served.Leaf.Raw) {
		t.Error("another certificate is served at once")
	}
	if err := handshake(h.clock.Now(), trusted, h.pair(), host); err != nil {
		t.Errorf("an API server that is behind: %v", err)
	}
}

func TestSyncRecreatesADeletedSecret(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	require.NoError(t, h.CoreV1().Secrets(namespace).Delete(t.Context(), config.Secret, metav1.DeleteOptions{}))
	h.sync(writeSecret, writeConfiguration)
	h.expectCalled(host)
}

func TestSyncRepairsTheBundle(t *testing.T) {
	for name, bundle := range map[string][]byte{"none": nil, "another": []byte("-----BEGIN CERTIFICATE-----\n")} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, installed())
			h.sync(writeSecret, writeConfiguration)
			h.editConfiguration(func(webhooks []admissionregistrationv1.ValidatingWebhook) {
				webhooks[1].ClientConfig.CABundle = bundle
			})
			h.sync(writeConfiguration)
			for _, webhook := range h.configuration().Webhooks {
				if !bytes.Equal(webhook.ClientConfig.CABundle, h.secret().Data["ca.crt"]) {
					t.Errorf("%s trusts %q", webhook.Name, webhook.ClientConfig.CABundle)
				}
			}
			h.sync()
		})
	}
}

func TestSyncFollowsTheHosts(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	for _, move := range []struct{ url, host string }{
		{"https://127.0.0.1:9443/validate", "127.0.0.1"},
		{"https://[2001:db8::a]:9443/validate", "2001:db8::a"},
		{"https://webhook.example.com/validate", "webhook.example.com"},
	} {
		h.editConfiguration(func(webhooks []admissionregistrationv1.ValidatingWebhook) {
			webhooks[0].ClientConfig.Service, webhooks[0].ClientConfig.URL = nil, ptr.To(move.url)
		})
		h.sync(writeSecret)
		h.expectCalled(move.host)
		// The other webhook keeps its host.
		h.expectCalled(host)
		if err := h.call("elsewhere"); err == nil {
			t.Error("the certificate is good for any host")
		}
		h.sync()
	}
}

func TestHostsOfAConfiguration(t *testing.T) {
	service := func(name string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "ns", Name: name}}
	}
	url := func(url string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{URL: &url}
	}
	for name, test := range map[string]struct {
		clients []admissionregistrationv1.WebhookClientConfig
		more    []string
		want    []string
		err     string
	}{
		"and more":    {clients: []admissionregistrationv1.WebhookClientConfig{service("b")}, more: []string{"c", "a"}, want: []string{"a", "b.ns.svc", "c"}},
		"none":        {},
		"each once":   {clients: []admissionregistrationv1.WebhookClientConfig{service("b"), service("a"), service("b")}, want: []string{"a.ns.svc", "b.ns.svc"}},
		"both kinds":  {clients: []admissionregistrationv1.WebhookClientConfig{service("b"), url("https://[::1]:9443/v")}, want: []string{"::1", "b.ns.svc"}},
		"neither":     {clients: []admissionregistrationv1.WebhookClientConfig{service("b"), {}}, err: "webhook b.nstance.dev of configuration nstance-operator"},
		"a bad URL":   {clients: []admissionregistrationv1.WebhookClientConfig{url("https://a:b:c")}, err: "webhook a.nstance.dev"},
		"only a path": {clients: []admissionregistrationv1.WebhookClientConfig{url("/validate")}, err: "webhook a.nstance.dev"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := hostsOf(newConfiguration(test.clients...), test.more)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %q, error %v, want an error about %s", got, err, test.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %q, error %v, want %q", got, err, test.want)
			}
		})
	}
}
