// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/base/identifier"
)

// Workload is the identity of software on an instance, such as a kubelet. It is no Client:
// its certificate has no role, so that no service of a shard server accepts it.
type Workload struct {
	// Server is true for a certificate of a server, false for one of a client.
	Server        bool
	CommonName    string
	Organizations []string
	DNS           []string
	IP            []netip.Addr
	URI           []*url.URL
	TTL           time.Duration
}

// SignWorkload issues a certificate for a key. Names in reserved, those of shard servers,
// are refused: clients trust the same authority, and would take the workload for a server.
func (a *Authority) SignWorkload(w Workload, key ed25519.PublicKey, reserved []string) (*x509.Certificate, error) {
	if err := w.check(reserved); err != nil {
		return nil, fmt.Errorf("issue a certificate for %q: %w", w.CommonName, err)
	}
	template, err := newTemplate(w.TTL)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: w.CommonName, Organization: w.Organizations}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if w.Server {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	template.DNSNames, template.URIs = w.DNS, w.URI
	for _, address := range w.IP {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.Unmap().AsSlice()))
	}
	return a.sign(template, key)
}

func (w *Workload) check(reserved []string) error {
	if w.CommonName == "" {
		return fmt.Errorf("it has no common name")
	}
	isReserved := func(name string) bool {
		return slices.ContainsFunc(reserved, func(r string) bool { return strings.EqualFold(strings.TrimSuffix(name, "."), r) })
	}
	for _, name := range w.DNS {
		if isReserved(name) {
			return fmt.Errorf("the name %q is that of a shard server", name)
		}
	}
	for _, address := range w.IP {
		if isReserved(address.Unmap().String()) {
			return fmt.Errorf("the address %s is that of a shard server", address)
		}
	}
	for _, uri := range w.URI {
		if strings.EqualFold(uri.Scheme, identifier.ServerScheme) {
			return fmt.Errorf("the URI %q is that of a shard server", uri)
		}
	}
	return nil
}
