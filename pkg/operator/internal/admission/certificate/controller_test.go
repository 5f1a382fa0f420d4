// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
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

// TestSyncOwnsOnlyTheBundles: the controller owns only the bundles of the configuration, and
// does not create a configuration that was deleted.
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

func TestPlan(t *testing.T) {
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	hosts := []string{host}
	first, err := renew(begin, material{}, decision{authority: true}, hosts)
	require.NoError(t, err)
	due, authorityDue := dueAt(first.serving), dueAt(first.newest())
	renewed, err := renew(authorityDue, first, decision{serving: true}, hosts)
	require.NoError(t, err)
	overlap, err := renew(authorityDue, first, decision{authority: true, serving: true}, hosts)
	require.NoError(t, err)
	// The Secret has a new authority, and the certificate of the old authority is still
	// served.
	change := begin.Add(time.Hour)
	early, err := renew(change, first, decision{authority: true}, hosts)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		now     time.Time
		have    material
		hosts   []string
		trusted time.Time
		want    decision
	}{
		"nothing":                      {now: begin, hosts: hosts, want: decision{authority: true, serving: true, next: begin}},
		"in order":                     {now: begin, have: first, hosts: hosts, trusted: begin, want: decision{next: due}},
		"in order, not trusted yet":    {now: begin, have: first, hosts: hosts, want: decision{next: due}},
		"another host":                 {now: begin, have: first, hosts: []string{host, "elsewhere"}, want: decision{serving: true, next: begin}},
		"a certificate that is due":    {now: due, have: first, hosts: hosts, trusted: begin, want: decision{serving: true, next: due}},
		"due, just before":             {now: due.Add(-1), have: first, hosts: hosts, trusted: begin, want: decision{next: due}},
		"due, seen trusted just now":   {now: due, have: first, hosts: hosts, trusted: due, want: decision{next: due.Add(settlePeriod)}},
		"due, and not trusted":         {now: due, have: first, hosts: hosts, want: decision{next: authorityDue}},
		"an authority that is due":     {now: authorityDue, have: renewed, hosts: hosts, trusted: begin, want: decision{authority: true, next: authorityDue}},
		"a new authority":              {now: change, have: early, hosts: hosts, want: decision{next: dueAt(early.newest())}},
		"a new authority, trusted":     {now: change, have: early, hosts: hosts, trusted: change, want: decision{next: change.Add(settlePeriod)}},
		"a new authority, settled":     {now: change.Add(settlePeriod), have: early, hosts: hosts, trusted: change, want: decision{serving: true, next: change.Add(settlePeriod)}},
		"a new authority that signs":   {now: authorityDue, have: overlap, hosts: hosts, trusted: authorityDue, want: decision{next: dueAt(overlap.serving)}},
		"the old authority expires":    {now: dueAt(overlap.serving), have: overlap, hosts: hosts, want: decision{next: first.newest().NotAfter}},
		"an expired certificate":       {now: begin.Add(servingLifetime + 1), have: first, hosts: hosts, want: decision{serving: true, next: begin.Add(servingLifetime + 1)}},
		"an authority without its key": {now: begin, have: withoutKey(first), hosts: hosts, trusted: begin, want: decision{authority: true, next: begin}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := plan(test.now, test.have, test.hosts, test.trusted); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func withoutKey(m material) material {
	m.key = nil
	return m
}

// TestTrustRestartsWithEachBundle: the configuration is trusted since it was first
// observed with its present bundle.
func TestTrustRestartsWithEachBundle(t *testing.T) {
	c := &Controller{}
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	configuration := func(bundle string) *admissionregistrationv1.ValidatingWebhookConfiguration {
		return newConfiguration(admissionregistrationv1.WebhookClientConfig{CABundle: []byte(bundle)})
	}
	for i, step := range []struct {
		configured, bundle string
		// since is the step at which trust began, -1 without trust.
		since int
	}{
		{"", "a", -1}, {"a", "a", 1}, {"a", "a", 1}, {"a", "b", -1}, {"a", "a", 4}, {"b", "b", 5}, {"b", "b", 5}, {"", "", -1}, {"b", "b", 8},
	} {
		var want time.Time
		if step.since >= 0 {
			want = begin.Add(time.Duration(step.since) * time.Hour)
		}
		if got := c.since(begin.Add(time.Duration(i)*time.Hour), configuration(step.configured), []byte(step.bundle)); !got.Equal(want) {
			t.Errorf("step %d: trusted since %s, want %s", i, got, want)
		}
	}
}

func TestServingCertificateIsReplacedBeforeExpiry(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	first, bundle := h.pair(), h.secret().Data["ca.crt"]
	due := h.sync()
	if want := (servingLifetime + clockSkew) / 3 * 2; due != want-clockSkew {
		t.Errorf("synced again after %s, want two thirds of %s", due, servingLifetime)
	}
	h.clock.SetTime(h.clock.Now().Add(due - time.Second))
	// A new process must observe the configuration for settlePeriod.
	h.restart()
	h.sync()
	h.clock.SetTime(h.clock.Now().Add(time.Second))
	if again := h.sync(); again != settlePeriod-time.Second {
		t.Errorf("synced again after %s", again)
	}
	h.clock.SetTime(h.clock.Now().Add(settlePeriod))
	h.sync(writeSecret)
	if bytes.Equal(h.pair().Leaf.Raw, first.Leaf.Raw) {
		t.Error("the certificate was not replaced")
	}
	if !bytes.Equal(h.secret().Data["ca.crt"], bundle) {
		t.Error("the authorities have changed")
	}
	// The API server trusts both authorities, so a replica may serve either certificate.
	h.expectCalled(host)
	if err := handshake(h.clock.Now(), bundle, first, host); err != nil {
		t.Errorf("the certificate before is not accepted any more: %v", err)
	}
}

// TestExpiredCertificateIsReplacedAtOnce because no client accepts it.
func TestExpiredCertificateIsReplacedAtOnce(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	h.clock.SetTime(h.clock.Now().Add(servingLifetime + time.Second))
	h.restart()
	h.sync(writeSecret)
	h.expectCalled(host)
}

func TestExpiredAuthorityIsReplacedAtOnce(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	h.clock.SetTime(h.clock.Now().Add(authorityLifetime + time.Second))
	h.restart()
	h.sync(writeSecret, writeConfiguration)
	h.expectCalled(host)
	if authorities, err := cert.ParseCertsPEM(h.secret().Data["ca.crt"]); err != nil || len(authorities) != 1 {
		t.Errorf("%d authorities are trusted, error %v", len(authorities), err)
	}
}

// version is a value with the time at which it was replaced.
type version[T any] struct {
	value    T
	replaced time.Time
}

// recent returns the versions that a process may still have if it is lag behind.
func recent[T any](versions []version[T], now time.Time, lag time.Duration) []T {
	var values []T
	for i, v := range versions {
		if i == len(versions)-1 || now.Sub(v.replaced) <= lag {
			values = append(values, v.value)
		}
	}
	return values
}

func record[T any](versions []version[T], value T, now time.Time, same func(a, b T) bool) []version[T] {
	if last := len(versions) - 1; last >= 0 {
		if same(versions[last].value, value) {
			return versions
		}
		versions[last].replaced = now
	}
	return append(versions, version[T]{value: value})
}

// TestNoCallEverFails: through fourteen years and several leaders every API server accepts
// every replica, although each may be minutes behind.
func TestNoCallEverFails(t *testing.T) {
	const (
		years = 14
		lag   = 5 * time.Minute
	)
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	var bundles []version[[]byte]
	var pairs []version[*tls.Certificate]
	end := h.clock.Now().AddDate(years, 0, 0)
	for steps := 0; h.clock.Now().Before(end); steps++ {
		if steps%7 == 0 {
			h.restart()
		}
		requeue, now := h.step(), h.clock.Now()
		if requeue <= 0 {
			t.Fatalf("%s: never looked at again", now)
		}
		bundles = record(bundles, h.configuration().Webhooks[0].ClientConfig.CABundle, now, bytes.Equal)
		pairs = record(pairs, h.pair(), now, func(a, b *tls.Certificate) bool { return bytes.Equal(a.Leaf.Raw, b.Leaf.Raw) })
		// The calls are made now, and just before the next sync.
		for _, at := range []time.Time{now, now.Add(requeue - time.Nanosecond)} {
			for _, bundle := range recent(bundles, at, lag) {
				for _, pair := range recent(pairs, at, lag) {
					if err := handshake(at, bundle, pair, host); err != nil {
						t.Fatalf("%s: a call fails: %v", at, err)
					}
				}
			}
		}
		h.clock.SetTime(now.Add(requeue))
	}
	// A new authority is issued after two thirds of ten years, and the previous one expires.
	if len(bundles) != 4 {
		t.Errorf("the trusted authorities have changed %d times, want 3", len(bundles)-1)
	}
	if least := years * 365 / 61; len(pairs) < least {
		t.Errorf("%d certificates in %d years, want at least %d", len(pairs), years, least)
	}
}
