// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// A machine that chooses its names could take the place of another machine, or of the API
// server of the cluster.
func TestACertificateHasOnlyNamesThatTheProviderReports(t *testing.T) {
	const id = "knd06bgm7733st2576nx5jht4ecjw"
	addresses := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	aws := instance.Instance{Addresses: addresses("10.0.0.7", "10.0.1.7", "fd00::7"), Hostname: "ip-10-0-0-7.us-west-2.compute.internal"}
	qemu := instance.Instance{}
	for name, test := range map[string]struct {
		reported instance.Instance
		said     instance.Registration
		template string
		want     string
		refused  string
	}{
		"host name of the provider":       {aws, instance.Registration{Hostname: "ip-10-0-0-7.us-west-2.compute.internal"}, "{{.Instance.Hostname}}", "ip-10-0-0-7.us-west-2.compute.internal", ""},
		"without its domain":              {aws, instance.Registration{Hostname: "IP-10-0-0-7"}, "{{.Instance.Hostname}}", "IP-10-0-0-7", ""},
		"instance id":                     {aws, instance.Registration{Hostname: id}, "{{.Instance.Hostname}}", id, ""},
		"instance id, no name":            {qemu, instance.Registration{Hostname: id}, "{{.Instance.Hostname}}", id, ""},
		"no host name":                    {qemu, instance.Registration{}, "{{.Instance.Hostname}}", "", ""},
		"another machine":                 {aws, instance.Registration{Hostname: "ip-10-0-0-8"}, "system:node:{{.Instance.Hostname}}", "", `reports the host name "ip-10-0-0-8", must be the instance id ` + id + ", or ip-10-0-0-7.us-west-2.compute.internal"},
		"another domain":                  {aws, instance.Registration{Hostname: "ip-10-0-0-7.example.com"}, "{{.Instance.Hostname}}", "", "must be the instance id"},
		"a service":                       {qemu, instance.Registration{Hostname: "kubernetes.default.svc"}, "{{.Instance.Hostname}}", "", "must be the instance id " + id},
		"a domain of the id":              {qemu, instance.Registration{Hostname: id + ".default.svc"}, "{{.Instance.Hostname}}", "", "must be the instance id"},
		"a host name that is not used":    {aws, instance.Registration{Hostname: "kubernetes.default.svc"}, "{{.Instance.ID}}", id, ""},
		"address":                         {aws, instance.Registration{IPv4: "10.0.1.7", IPv6: "fd00::7"}, "{{.Instance.IP4}} {{.Instance.IP6}}", "10.0.1.7 fd00::7", ""},
		"address of the provider":         {aws, instance.Registration{}, "{{.Instance.IP4}} {{.Instance.IP6}}", "10.0.0.7 fd00::7", ""},
		"no address of the family":        {instance.Instance{Addresses: addresses("10.0.0.7")}, instance.Registration{}, "{{.Instance.IP6}}", "", ""},
		"address of another machine":      {aws, instance.Registration{IPv4: "10.96.0.1"}, "{{.Instance.IP4}}", "", ".Instance.IP4: the agent reports the address 10.96.0.1, must be one of those that the provider reports, [10.0.0.7 10.0.1.7 fd00::7]"},
		"IPv6 address of another machine": {aws, instance.Registration{IPv6: "fd00::8"}, "{{.Instance.IP6}}", "", ".Instance.IP6: the agent reports the address fd00::8"},
		"no address is reported":          {qemu, instance.Registration{IPv4: "10.0.2.15"}, "{{.Instance.IP4}}", "", "the provider reports no addresses of the instance, or not yet"},
		"nor by the agent":                {qemu, instance.Registration{}, "{{.Instance.IP4}}", "", "the provider reports no addresses of the instance, or not yet"},
	} {
		t.Run(name, func(t *testing.T) {
			i := test.reported
			i.Record = instance.Record{ID: id, Registration: &test.said}
			p := New(Options{Config: func() *config.Config { return &config.Config{} }})
			got, err := p.FileFacts(&groups.Group{}, &i).Certified().Render(test.template)
			if test.refused != "" {
				require.ErrorContains(t, err, test.refused)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}

// Other files have what the agent says, or else what the provider reports.
func TestFactsOfFilesThatAreNoCertificates(t *testing.T) {
	i := instance.Instance{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
	p := New(Options{Config: func() *config.Config { return &config.Config{} }})
	const text = "{{.Instance.Hostname}} {{.Instance.IP4}} {{.Instance.IP6}}"
	got, err := p.FileFacts(&groups.Group{}, &i).Render(text)
	require.NoError(t, err)
	assert.Equal(t, " 10.0.0.7 ", got)
	i.Registration = &instance.Registration{Hostname: "any", IPv4: "10.0.0.8", IPv6: "fd00::8"}
	got, err = p.FileFacts(&groups.Group{}, &i).Render(text)
	require.NoError(t, err)
	assert.Equal(t, "any 10.0.0.8 fd00::8", got)
}
