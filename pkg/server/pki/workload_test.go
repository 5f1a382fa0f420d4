// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/identifier"
)

// Clients trust the authority of workloads, and compare only names: a mapped IPv4 address is
// in a certificate as the IPv4 address, and a name has no case.
func TestWorkloadsDoNotGetTheNamesOfServers(t *testing.T) {
	authority := newAuthority(t)
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	reserved := []string{"shard.example.com", "10.0.0.7", "fd00::7"}
	for name, change := range map[string]func(*Workload){
		"a name":                  func(w *Workload) { w.DNS = []string{"other.example.com", "shard.example.com"} },
		"a name in capitals":      func(w *Workload) { w.DNS = []string{"Shard.Example.com"} },
		"a name with a final dot": func(w *Workload) { w.DNS = []string{"shard.example.com."} },
		"an IPv4 address":         func(w *Workload) { w.IP = []netip.Addr{netip.MustParseAddr("10.0.0.7")} },
		"a mapped IPv4 address":   func(w *Workload) { w.IP = []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.7")} },
		"an IPv6 address":         func(w *Workload) { w.IP = []netip.Addr{netip.MustParseAddr("fd00:0::7")} },
		"a URI":                   func(w *Workload) { w.URI = []*url.URL{{Scheme: "Nstance", Host: "test", Path: "/a"}} },
	} {
		w := Workload{Server: true, CommonName: "kubelet", TTL: time.Hour}
		change(&w)
		_, err := authority.SignWorkload(w, public, reserved)
		assert.ErrorContains(t, err, "shard server", name)
	}

	certificate, err := authority.SignWorkload(Workload{
		Server: true, CommonName: "kubelet", TTL: time.Hour, DNS: []string{"node.example.com"},
		IP: []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.8")}, URI: []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/a"}},
	}, public, reserved)
	require.NoError(t, err)
	assert.NoError(t, certificate.VerifyHostname("node.example.com"))
	assert.NoError(t, certificate.VerifyHostname("10.0.0.8"))
	assert.ErrorIs(t, identifier.CheckServer(certificate), identifier.ErrWorkload)
	assert.Empty(t, certificate.UnhandledCriticalExtensions, "others accept the certificate")
}
