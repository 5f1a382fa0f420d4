// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provision"
)

// certificate returns a certificate for a key of the agent, PEM.
func (r *Renderer) certificate(source config.FileSource, facts provision.FileFacts, keys map[string]ed25519.PublicKey) ([]byte, error) {
	template, found := r.Config().Certificates[source.Template]
	if !found {
		return nil, fmt.Errorf("there is no certificate template %q", source.Template)
	}
	key, found := keys[source.Key]
	if !found {
		return nil, fmt.Errorf("the agent has not sent the key %q", source.Key)
	}
	workload, err := workloadOf(template, facts)
	if err != nil {
		return nil, fmt.Errorf("certificate template %q: %w", source.Template, err)
	}
	return r.Sign(workload, key)
}

// workloadOf renders a template.
func workloadOf(t config.CertificateTemplate, facts provision.FileFacts) (pki.Workload, error) {
	w := pki.Workload{Server: t.Usage == config.UsageServer, TTL: t.TTL}
	var err error
	if w.CommonName, err = facts.Render(t.CommonName); err != nil {
		return w, fmt.Errorf("cn: %w", err)
	}
	if w.Organizations, err = rendered(t.Organizations, facts); err != nil {
		return w, fmt.Errorf("organization: %w", err)
	}
	if w.DNS, err = rendered(t.DNS, facts); err != nil {
		return w, fmt.Errorf("dns: %w", err)
	}
	for _, name := range w.DNS {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return w, fmt.Errorf("dns: %q is no host name", name)
		}
	}
	addresses, err := rendered(t.IP, facts)
	if err != nil {
		return w, fmt.Errorf("ip: %w", err)
	}
	for _, text := range addresses {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return w, fmt.Errorf("ip: %q is no address", text)
		}
		w.IP = append(w.IP, address)
	}
	uris, err := rendered(t.URI, facts)
	if err != nil {
		return w, fmt.Errorf("uri: %w", err)
	}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil || uri.Scheme == "" {
			return w, fmt.Errorf("uri: %q is no URI", text)
		}
		w.URI = append(w.URI, uri)
	}
	return w, nil
}

// rendered returns the rendered texts without those that are empty.
func rendered(texts []string, facts provision.FileFacts) ([]string, error) {
	var values []string
	for _, text := range texts {
		value, err := facts.Render(text)
		if err != nil {
			return nil, err
		}
		if value != "" {
			values = append(values, value)
		}
	}
	return values, nil
}

// due reports whether a certificate that was made at a time has to be made again: a third
// of its lifetime is left.
func due(t config.CertificateTemplate, made, now time.Time) bool {
	return now.Sub(made) > t.TTL*2/3
}
