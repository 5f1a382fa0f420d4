// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

const leaderInterface = "eni-0123456789abcdef0"

var leaderAddress = netip.MustParseAddr("10.0.0.10")

// eniBackend is a region with the interface of the leader and instances for servers, whose
// ids end with their one-letter names.
type eniBackend struct {
	*ec2test.Server
	t *testing.T
}

func newENIBackend(t *testing.T) *eniBackend {
	s := newRegion()
	s.AddInterface(leaderInterface, ec2test.Zone, "10.0.0.11", leaderAddress.String(), "2001:db8::10")
	for _, name := range []string{"a", "b", "c"} {
		s.AddInstance(serverID(name), largeSubnet)
	}
	s.StartInMemory(t)
	return &eniBackend{s, t}
}

// serverID returns the id of the instance of a server.
func serverID(name string) string { return "i-0000000" + fmt.Sprintf("%x", name[0]-'a'+10) }

func (b *eniBackend) Network() provider.Network {
	return provider.Network{IP: leaderAddress, InterfaceID: leaderInterface}
}

func (b *eniBackend) Machine(name string) provider.LeaderNetwork {
	n, err := testOptions(b.Server).newLeaderNetwork(testShard, b.Dial, ec2test.MetadataURL(serverID(name)))
	require.NoError(b.t, err)
	return n
}

func (b *eniBackend) Owner() string {
	return strings.TrimPrefix(b.Server.Owner(leaderInterface), "i-0000000")
}

func (b *eniBackend) DelayAttach(reads int) { b.Server.DelayAttach(leaderInterface, reads) }

func (b *eniBackend) LoseResponses(times int) {
	b.SetFaults(&ec2test.Fault{Writes: true, Times: times})
}

func (b *eniBackend) Changes() int { return b.InterfaceChanges() }

func (b *eniBackend) Pause(do func()) { b.PauseChange(do) }

// assign assigns the address to a server.
func (b *eniBackend) assign(name string) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	return b.Machine(name).Assign(ctx, b.Network())
}

func TestLeaderNetwork(t *testing.T) {
	providertest.TestLeaderNetwork(t, providertest.LeaderNetworkConfig{
		Run:        synctest.Test,
		NewBackend: func(t *testing.T) providertest.LeaderNetworkBackend { return newENIBackend(t) },
	})
}

// inNetwork runs a test in a bubble of synctest.
func inNetwork(t *testing.T, test func(*testing.T, *eniBackend)) {
	synctest.Test(t, func(t *testing.T) { test(t, newENIBackend(t)) })
}

// TestHealthyHostsAreNotForced: a server process ended, and its host is well. The interface moves
// back and forth without force, which would spoil the hosts.
func TestHealthyHostsAreNotForced(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *eniBackend) {
		for range 5 {
			for _, name := range []string{"a", "b"} {
				require.NoError(t, b.assign(name))
				assert.Equal(t, name, b.Owner())
			}
		}
		assert.Zero(t, b.Forced())
	})
}

// TestAnIndexAfterAForcedDetachment cannot be used: the interface is attached to the next one.
func TestAnIndexAfterAForcedDetachment(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *eniBackend) {
		b.StickDetach(leaderInterface)
		require.NoError(t, b.assign("a"))
		require.NoError(t, b.assign("b"))
		assert.Equal(t, 1, b.Forced())
		a := b.Machine("a")
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			require.NoError(t, a.Assign(ctx, b.Network()))
			cancel()
			assert.Equal(t, "a", b.Owner())
		}
	})
}

// TestForcedDetachment: an interface is taken from an instance whose system does not
// respond, after a while, and also if its own server has begun to detach it.
func TestForcedDetachment(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *eniBackend) {
		b.StickDetach(leaderInterface)
		require.NoError(t, b.assign("a"))
		started := time.Now()
		require.NoError(t, b.assign("b"))
		assert.GreaterOrEqual(t, time.Since(started), forceDelay)
		assert.Less(t, time.Since(started), 3*forceDelay)
		assert.Equal(t, 1, b.Forced())
		b.Changes()
		require.NoError(t, b.Machine("b").Release(t.Context(), b.Network()))
		assert.Empty(t, b.Owner())
		// The detachment is forced by a later call of the same process.
		c := b.Machine("c")
		assign := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), forceDelay-attachmentInterval/2)
			defer cancel()
			return c.Assign(ctx, b.Network())
		}
		require.ErrorContains(t, assign(), "its state is in-use, attachment to "+serverID("b")+" detaching")
		err := assign()
		for range 2 {
			if err != nil {
				err = assign()
			}
		}
		require.NoError(t, err)
		assert.Equal(t, "c", b.Owner())
		assert.Equal(t, 3, b.Changes(), "detached, detached with force, attached")
	})
}

// TestLateInterfaces: reads show the interface as it was before. Nothing is attached twice.
func TestLateInterfaces(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *eniBackend) {
		require.NoError(t, b.assign("a"))
		b.DelayInterfaces(4 * time.Second)
		time.Sleep(5 * time.Second)
		b.Changes()
		n := b.Machine("b")
		for attempt := 0; ; attempt++ {
			require.Less(t, attempt, 30)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			err := n.Assign(ctx, b.Network())
			cancel()
			if err == nil {
				break
			}
			time.Sleep(time.Second)
		}
		assert.Equal(t, "b", b.Owner())
		assert.Equal(t, 2, b.Changes(), "detached and attached")
	})
}

// TestFreeIndex: other interfaces of the instance keep their indexes, and one too many is an
// error.
func TestFreeIndex(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *eniBackend) {
		b.AddInterface("eni-00000001", ec2test.Zone, "10.0.0.21")
		b.AddInterface("eni-00000002", ec2test.Zone, "10.0.0.22")
		a := b.Machine("a")
		first := provider.Network{IP: netip.MustParseAddr("10.0.0.21"), InterfaceID: "eni-00000001"}
		second := provider.Network{IP: netip.MustParseAddr("10.0.0.22"), InterfaceID: "eni-00000002"}
		require.NoError(t, a.Assign(t.Context(), first))
		require.NoError(t, a.Assign(t.Context(), b.Network()))
		require.NoError(t, a.Release(t.Context(), first))
		time.Sleep(b.DetachTime)
		require.NoError(t, a.Assign(t.Context(), second), "the index is free again")
		require.ErrorContains(t, a.Assign(t.Context(), first), "AttachmentLimitExceeded")
		assert.Equal(t, "a", b.Owner())
	})
}

// TestInterfacesThatCannotBeAssigned change nothing.
func TestInterfacesThatCannotBeAssigned(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *eniBackend) {
		b.AddInterface("eni-00000001", ec2test.Zone, "10.0.0.21")
		b.AttachPrimary("eni-00000001", serverID("a"))
		b.AddInterface("eni-00000002", "us-test-1b", "10.0.0.22")
		for _, tc := range []struct {
			name, ip, id, want string
		}{
			{"another address", "10.0.0.12", leaderInterface, "interface " + leaderInterface + " does not have the address 10.0.0.12"},
			{"no interface", "10.0.0.10", "eni-00000009", "InvalidNetworkInterfaceID.NotFound"},
			{"the own primary one", "10.0.0.21", "eni-00000001", "is the primary one of instance " + serverID("a")},
			{"another zone", "10.0.0.22", "eni-00000002", "InvalidParameterCombination"},
		} {
			network := provider.Network{IP: netip.MustParseAddr(tc.ip), InterfaceID: tc.id}
			assert.ErrorContains(t, b.Machine("a").Assign(t.Context(), network), tc.want, tc.name)
		}
		network := provider.Network{IP: netip.MustParseAddr("10.0.0.21"), InterfaceID: "eni-00000001"}
		assert.NoError(t, b.Machine("a").Release(t.Context(), network))
		assert.Zero(t, b.Changes())
		ipv6 := provider.Network{IP: netip.MustParseAddr("2001:db8::10"), InterfaceID: leaderInterface}
		require.NoError(t, b.Machine("a").Assign(t.Context(), ipv6))
	})
}

// TestFailedReads are errors, of which nothing follows.
func TestFailedReads(t *testing.T) {
	inNetwork(t, func(t *testing.T, b *eniBackend) {
		require.NoError(t, b.assign("a"))
		b.Changes()
		for _, fault := range []*ec2test.Fault{
			{Call: "DescribeNetworkInterfaces", Times: 2, Status: http.StatusServiceUnavailable},
			{Call: "DescribeNetworkInterfaces", Times: 2, Status: http.StatusOK},
			{Call: "DescribeNetworkInterfaces", Times: 2},
		} {
			b.SetFaults(fault)
			require.ErrorContains(t, b.assign("b"), "read interface "+leaderInterface)
			require.ErrorContains(t, b.Machine("a").Release(t.Context(), b.Network()), "read interface "+leaderInterface)
		}
		n, err := testOptions(b.Server).newLeaderNetwork(testShard, b.Dial, "http://other.metadata.test")
		require.NoError(t, err)
		require.ErrorContains(t, n.Assign(t.Context(), b.Network()), `the metadata service has "other" as the id of this instance`)
		assert.Zero(t, b.Changes())
		assert.Equal(t, "a", b.Owner())
	})
}

func TestValidateLeaderNetwork(t *testing.T) {
	for _, tc := range []struct{ name, ip, id, want string }{
		{"an interface", "10.0.0.10", leaderInterface, ""},
		{"none", "10.0.0.10", "", `network.interface_id: Invalid value: ""`},
		{"another resource", "10.0.0.10", "i-0123456789abcdef0", "must be the id of a network interface"},
		{"a loopback address", "127.0.0.1", leaderInterface, "network.ip: Invalid value"},
		{"a link-local address", "169.254.1.1", leaderInterface, "network.ip: Invalid value"},
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
