// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

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
	// There is a new authority, and the old one's certificate is still served.
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
		// since is the step at which trust began, or -1 if there is none.
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
