// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// refusals records what Registrar.Failed is called with.
func refusals(r *Registrar) *[]string {
	var all []string
	r.Failed = func(group instance.GroupKey, id string, err error) {
		all = append(all, group.String()+" "+id+": "+err.Error())
	}
	return &all
}

// lastEntry returns the latest entry of the audit log.
func lastEntry(t *testing.T, r *Registrar) auditlog.Entry {
	t.Helper()
	infos, err := r.AuditLog.Store.List(t.Context(), "audit-log/a/")
	require.NoError(t, err)
	require.NotEmpty(t, infos)
	object, err := r.AuditLog.Store.Get(t.Context(), infos[len(infos)-1].Key)
	require.NoError(t, err)
	var entry auditlog.Entry
	require.NoError(t, json.Unmarshal(object.Data, &entry))
	return entry
}

// An agent with an address that the provider does not report gets no certificate. Without a
// report of the provider the address is stored, and no certificate of a file has it.
func TestAnAgentWithTheAddressOfAnotherMachineIsRefused(t *testing.T) {
	instances := providertest.NewInstances()
	r, id := newRegistrarWith(t, instances)
	refused := refusals(r)
	_, keyPEM := newKey(t, 1)
	register := func(m Machine) error {
		_, err := r.Register(t.Context(), Request{Token: newNonce(t, id), PublicKeyPEM: keyPEM, Machine: m})
		return err
	}
	key := instance.GroupKey{Tenant: "default", Group: "main"}
	instances.Put(instance.VM{ID: id, Group: key, State: instance.Running, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}})
	for _, m := range []Machine{{IPv4: "10.96.0.1"}, {IPv4: "10.0.0.7", IPv6: "fd00::8"}} {
		err := register(m)
		require.ErrorIs(t, err, ErrMachine)
		assert.ErrorContains(t, err, "must be an address that the provider reports: [10.0.0.7 fd00::7]")
		assert.Equal(t, []string{"default/main " + id + ": " + err.Error()}, *refused)
		entry := lastEntry(t, r)
		assert.Equal(t, auditlog.Entry{At: entry.At, Action: audit.RefuseRegistration, Tenant: "default", Instance: id, Reason: err.Error()}, entry)
		i, _ := r.Instances.Get(id)
		assert.Nil(t, i.Registration)
		*refused = nil
	}
	require.NoError(t, register(Machine{IPv4: "10.0.0.7", IPv6: "fd00:0::7", Hostname: "any"}))
	instances.Put(instance.VM{ID: id, Group: key, State: instance.Running})
	require.NoError(t, register(Machine{IPv4: "10.96.0.1"}))
	assert.Empty(t, *refused)
}

// checkedOptions are the options of a provider whose agents must register from their machines.
type checkedOptions struct{ provider.Options }

func (checkedOptions) ChecksSource() bool { return true }

// checkedGroups have checkedOptions.
type checkedGroups struct{ Groups }

func (g checkedGroups) Config() *config.Config {
	c := *g.Groups.Config()
	c.Shard.Infra.Options = checkedOptions{}
	return &c
}

// A nonce is in userdata, which other processes and users of the cloud may read.
func TestANonceIsOfNoUseOnAnotherMachine(t *testing.T) {
	instances := providertest.NewInstances()
	r, id := newRegistrarWith(t, instances)
	r.Groups = checkedGroups{r.Groups}
	refused := refusals(r)
	var refreshed []string
	r.Refresh = func(id string) { refreshed = append(refreshed, id) }
	register := func(seed byte, source string) error {
		_, keyPEM := newKey(t, seed)
		_, err := r.Register(t.Context(), Request{Token: newNonce(t, id), PublicKeyPEM: keyPEM, Source: netip.MustParseAddr(source)})
		return err
	}
	// Until the provider has reported the addresses, the agent tries again.
	err := register(1, "10.0.0.7")
	require.ErrorIs(t, err, errNoAddress)
	require.NotErrorIs(t, err, ErrSource)
	assert.Equal(t, []string{id}, refreshed)
	assert.Empty(t, *refused)

	instances.Put(instance.VM{
		ID: id, Group: instance.GroupKey{Tenant: "default", Group: "main"}, State: instance.Running,
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")},
	})
	for _, source := range []string{"10.0.0.8", "fd00::8", "::1"} {
		err := register(2, source)
		require.ErrorIs(t, err, ErrSource)
		assert.ErrorContains(t, err, "it comes from "+source+", must come from an address that the provider reports: [10.0.0.7 fd00::7]")
	}
	assert.Len(t, *refused, 3)
	assert.Equal(t, audit.RefuseRegistration, lastEntry(t, r).Action)
	// However often it is tried, the agent gets its certificate.
	for range 50 {
		require.ErrorIs(t, register(2, "10.0.0.8"), ErrSource)
	}
	for _, source := range []string{"10.0.0.7", "::ffff:10.0.0.7", "fd00::7", "fd00::7%eth0"} {
		require.NoError(t, register(1, source), source)
	}
	// Without the option every address is accepted.
	r.Groups = r.Groups.(checkedGroups).Groups
	require.NoError(t, register(1, "192.0.2.1"))
}
