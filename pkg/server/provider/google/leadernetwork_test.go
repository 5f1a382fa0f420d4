// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

var leaderAddress = netip.MustParseAddr("10.0.200.10")

// aliasBackend is a project with machines for servers, "a", "b" and "c".
type aliasBackend struct {
	*gcetest.Server
	t *testing.T
}

func newAliasBackend(t *testing.T) *aliasBackend {
	s := gcetest.New()
	for _, name := range []string{"a", "b", "c"} {
		s.AddMachine(testShard.Zone, name, "subnet")
	}
	s.StartInMemory(t)
	return &aliasBackend{s, t}
}

func (b *aliasBackend) Network() provider.Network { return provider.Network{IP: leaderAddress} }

func (b *aliasBackend) Machine(name string) provider.LeaderNetwork {
	return newLeaderNetwork(b.newAPI(), b.MetadataClient(name))
}

func (b *aliasBackend) newAPI() *API {
	api, err := newAPI(testOptions(b.Server), testShard, b.Transport())
	require.NoError(b.t, err)
	return api
}

func (b *aliasBackend) Owner() string { return b.Server.Owner(leaderAddress.String()) }

func (b *aliasBackend) DelayAttach(reads int) { b.DelayAlias(reads) }

func (b *aliasBackend) LoseResponses(times int) {
	b.SetFaults(&gcetest.Fault{Call: "updateNetworkInterface", Times: times})
}

func (b *aliasBackend) Changes() int { return b.InterfaceChanges() }

func (b *aliasBackend) Pause(do func()) { b.PauseChange(do) }

func TestLeaderNetwork(t *testing.T) {
	providertest.TestLeaderNetwork(t, providertest.LeaderNetworkConfig{
		Run:        synctest.Test,
		NewBackend: func(t *testing.T) providertest.LeaderNetworkBackend { return newAliasBackend(t) },
	})
}

// inNetwork runs a test in a bubble of synctest.
func inNetwork(t *testing.T, test func(*testing.T, *aliasBackend)) {
	synctest.Test(t, func(t *testing.T) { test(t, newAliasBackend(t)) })
}

func (b *aliasBackend) assign(name string) error {
	return b.Machine(name).Assign(b.t.Context(), b.Network())
}

// TestOtherAliases, of the same VMs and of other VMs, are left alone.
func TestOtherAliases(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *aliasBackend) {
		a := map[string]string{"10.128.1.0/24": "pods", "10.0.200.11/32": ""}
		b.SetAliases("a", a)
		b.SetAliases("b", map[string]string{"10.128.2.0/24": "pods"})
		require.NoError(t, b.assign("a"))
		require.NoError(t, b.assign("b"))
		assert.Equal(t, a, b.Aliases("a"))
		assert.Equal(t, map[string]string{"10.128.2.0/24": "pods", "10.0.200.10/32": ""}, b.Aliases("b"))
		require.NoError(t, b.Machine("b").Release(t.Context(), b.Network()))
		assert.Equal(t, map[string]string{"10.128.2.0/24": "pods"}, b.Aliases("b"))
	})
}

// TestInterfaceThatHasChanged: an interface that another client changes after it was read is
// an error. The next call reads it again.
func TestInterfaceThatHasChanged(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *aliasBackend) {
		n := b.Machine("a")
		b.Pause(func() { b.SetAliases("a", map[string]string{"10.128.1.0/24": "pods"}) })
		require.ErrorContains(t, n.Assign(t.Context(), b.Network()), "HTTP 412 conditionNotMet")
		assert.Empty(t, b.Owner())
		assert.Zero(t, b.Changes())
		require.NoError(t, n.Assign(t.Context(), b.Network()))
		assert.Equal(t, map[string]string{"10.128.1.0/24": "pods", "10.0.200.10/32": ""}, b.Aliases("a"))

		// The same before the call is sent.
		require.NoError(t, n.Release(t.Context(), b.Network()))
		own := map[string]string{"10.128.1.0/24": "pods", "10.128.2.0/24": "pods"}
		api := b.newAPI()
		api.step = func(string) { b.SetAliases("a", own) }
		require.ErrorContains(t, newLeaderNetwork(api, b.MetadataClient("a")).Assign(t.Context(), b.Network()), "HTTP 412")
		assert.Equal(t, own, b.Aliases("a"))
		require.NoError(t, n.Assign(t.Context(), b.Network()))
		// The same with the interface of the leader before, and with a release.
		b.Pause(func() { b.SetAliases("a", map[string]string{"10.0.200.10/32": ""}) })
		require.ErrorContains(t, b.assign("b"), "take the address 10.0.200.10 from virtual machine a: compute.instances.updateNetworkInterface: HTTP 412")
		assert.Equal(t, "a", b.Owner())
		b.Pause(func() { b.SetAliases("a", map[string]string{"10.0.200.10/32": "", "10.128.1.0/24": "pods"}) })
		require.ErrorContains(t, n.Release(t.Context(), b.Network()), "HTTP 412")
		require.NoError(t, b.assign("b"))
		assert.Equal(t, "b", b.Owner())
	})
}

// TestAddressThatWasGivenBack: a call that was sent before a pause is valid again when the
// machine from which it takes the address has the same content as before. That machine gets
// it back, and the server that continues does not get it.
func TestAddressThatWasGivenBack(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *aliasBackend) {
		require.NoError(t, b.assign("c"))
		leads := true
		ctx := deadline.WithLease(t.Context(), func() time.Time {
			if leads {
				return time.Now().Add(time.Hour)
			}
			return time.Now()
		})
		b.Pause(func() {
			leads = false
			require.NoError(t, b.assign("b"))
			require.NoError(t, b.assign("c"))
		})
		require.ErrorIs(t, b.Machine("a").Assign(ctx, b.Network()), context.DeadlineExceeded)
		time.Sleep(b.OperationTime)
		assert.Empty(t, b.Aliases("a"))
		require.NoError(t, b.assign("c"))
		assert.Equal(t, "c", b.Owner())
	})
}

// TestOwnersOnManyPages: the machine that has the address may be on any page of the list.
// While the address is this machine's, the list is not read.
func TestOwnersOnManyPages(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *aliasBackend) {
		b.PageSize = 2
		require.NoError(t, b.assign("c"))
		b.Calls()
		require.NoError(t, b.assign("a"))
		assert.Equal(t, 2, b.Calls()["compute.instances.list"], "pages")
		assert.Equal(t, "a", b.Owner())
		require.NoError(t, b.assign("a"))
		assert.Equal(t, map[string]int{"compute.zoneOperations.list": 1, "compute.instances.get": 1}, b.Calls())
	})
}

// TestChangesInProgress: a network interface that shows the address while its operation runs,
// which fails then, has not got it.
func TestChangesInProgress(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *aliasBackend) {
		require.NoError(t, b.assign("c"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		// The list of addresses is empty, so that the service refuses the address.
		b.SetFaults(&gcetest.Fault{Call: "instances.list", Times: 1, Status: http.StatusOK, Body: map[string]any{"kind": "compute#instanceList"}},
			&gcetest.Fault{Call: "updateNetworkInterface", Times: 1})
		n := b.Machine("a")
		require.Error(t, n.Assign(ctx, b.Network()))
		assert.Contains(t, b.Aliases("a"), "10.0.200.10/32", "while the operation runs")
		b.SetFaults(&gcetest.Fault{Call: "instances.list", Times: 1, Status: http.StatusServiceUnavailable})
		require.ErrorContains(t, n.Assign(ctx, b.Network()), "find the virtual machine with the address")
		assert.Equal(t, "c", b.Owner())
		require.NoError(t, n.Assign(ctx, b.Network()))
		assert.Equal(t, "a", b.Owner())
	})
}

// TestAddressesThatCannotBeAssigned change nothing.
func TestAddressesThatCannotBeAssigned(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *aliasBackend) {
		b.AddMachine("zone-b", "elsewhere", "subnet")
		b.SetAliases("b", map[string]string{"10.0.201.0/24": ""})
		b.SetAliases("elsewhere", map[string]string{"10.0.202.1/32": ""})
		for _, tc := range []struct{ name, machine, ip, nic, want string }{
			{"of a larger range", "a", "10.0.201.1", "", "10.0.201.1 is an address of the alias IP range 10.0.201.0/24 of virtual machine b"},
			{"a primary address", "a", b.Address("b"), "", b.Address("b") + " is the primary address of virtual machine b"},
			{"not of the subnetwork", "a", "10.9.0.1", "", "is not of the range '10.0.0.0/16'"},
			{"no interface", "a", "10.0.200.10", "nic1", "this virtual machine, a, has no network interface nic1"},
			{"a server in another zone", "elsewhere", "10.0.200.10", "", "this virtual machine is in zone zone-b of project test-project, and the address of the leader needs one in zone zone-a"},
			{"no machine", "none", "10.0.200.10", "", "from the metadata server"},
		} {
			network := provider.Network{IP: netip.MustParseAddr(tc.ip), InterfaceID: tc.nic}
			assert.ErrorContains(t, b.Machine(tc.machine).Assign(t.Context(), network), tc.want, tc.name)
		}
		assert.Zero(t, b.Changes())
		network := provider.Network{IP: netip.MustParseAddr("10.0.202.1")}
		require.ErrorContains(t, b.Machine("a").Assign(t.Context(), network), "IP_IN_USE_BY_ANOTHER_RESOURCE", "a machine in another zone")
		assert.Empty(t, b.Aliases("a"))
	})
}

// TestFailedReads are errors, of which nothing follows.
func TestFailedReads(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *aliasBackend) {
		require.NoError(t, b.assign("a"))
		b.Changes()
		for _, fault := range []*gcetest.Fault{
			{Call: "instances.get", Status: http.StatusServiceUnavailable},
			{Call: "instances.get", Status: http.StatusOK, Body: map[string]any{"name": "b", "id": "1", "networkInterfaces": []any{map[string]string{"name": "nic0"}}}},
			{Call: "instances.get", Status: http.StatusOK, Body: map[string]any{}},
			{Call: "instances.list"},
			{Call: "instances.list", Status: http.StatusOK, Body: map[string]any{}},
			{Call: "zoneOperations.list", Status: http.StatusForbidden, Code: "forbidden"},
		} {
			b.SetFaults(fault)
			require.Error(t, b.assign("b"), fault.Call)
			assert.Zero(t, b.Changes())
		}
		assert.Equal(t, "a", b.Owner())
	})
}

func TestValidateLeaderNetwork(t *testing.T) {
	for _, tc := range []struct{ name, ip, id, want string }{
		{"an address", "10.0.0.10", "", ""},
		{"an interface", "10.0.0.10", "nic1", ""},
		{"another resource", "10.0.0.10", "eth0", `network.interface_id: Invalid value: "eth0": must be the name of a network interface`},
		{"an IPv6 address", "2001:db8::1", "", "network.ip: Invalid value"},
		{"a loopback address", "127.0.0.1", "", "network.ip: Invalid value"},
		{"a link-local address", "169.254.1.1", "", "network.ip: Invalid value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := (&Options{}).ValidateLeaderNetwork(field.NewPath("network"), provider.Network{IP: netip.MustParseAddr(tc.ip), InterfaceID: tc.id})
			if tc.want == "" {
				require.Empty(t, errs)
				return
			}
			assert.Contains(t, strings.Join(providertest.Messages(errs), "\n"), tc.want)
		})
	}
}
