// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/runtest"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/connpool"
	shardidentity "nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/informer"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// leaderAddress is the address of the leader, which the certificate of the servers must
// have. The test forwards its connections to the machine that has it in the cloud.
const leaderAddress = "127.0.2.10"

// leaderShard is the shard of the servers.
const leaderShard = "us-west-2a"

// ipNetwork forwards the connections to the address of the leader to the machine that has
// it. When another machine gets it, the connections to the one before break.
type ipNetwork struct {
	cloud    *providertest.NetworkCloud
	machines map[string]*machine
	// addr is the address of the leader with its port.
	addr string
	// accepted counts the connections of clients.
	accepted atomic.Int32
}

// startNetwork forwards connections until the test is over.
func startNetwork(t *testing.T, cloud *providertest.NetworkCloud, machines map[string]*machine) *ipNetwork {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", leaderAddress+":0")
	require.NoError(t, err)
	n := &ipNetwork{cloud: cloud, machines: machines, addr: listener.Addr().String()}
	runtest.Start(t, func(ctx context.Context) {
		defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
		var forwarding sync.WaitGroup
		defer forwarding.Wait()
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			n.accepted.Add(1)
			forwarding.Go(func() { n.forward(ctx, client) })
		}
	})
	return n
}

// forward forwards one connection until one side closes it or another machine has the
// address.
func (n *ipNetwork) forward(ctx context.Context, client net.Conn) {
	defer client.Close()
	// Packets are lost while no machine has the address.
	owner := n.awaitOwner(ctx, func(owner string) bool { return owner != "" })
	if owner == "" {
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", n.machines[owner].addr)
	if err != nil {
		return
	}
	defer server.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, direction := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			defer stop()
			_, _ = io.Copy(direction[0], direction[1])
		}()
	}
	n.awaitOwner(ctx, func(now string) bool { return now != "" && now != owner })
}

// awaitOwner returns the machine that has the address once it is accepted, "" if ctx is
// done before.
func (n *ipNetwork) awaitOwner(ctx context.Context, accepted func(string) bool) string {
	for {
		if owner := n.cloud.Owner(); accepted(owner) {
			return owner
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// leaderClient are the connections and the caches of an operator, whose only shard it reaches
// at the address of the leader.
type leaderClient struct {
	*connpool.Pool
	t       *testing.T
	groups  *informer.Groups
	notices *informer.Notices
	// session is the last one that followed.
	session int64
}

func startLeaderClient(t *testing.T, prepared *servertest.Server, address string) *leaderClient {
	t.Helper()
	certificate, key := pkitest.Operator(t, prepared.Authority, "operator", "default")
	var own shardidentity.Identity
	require.NoError(t, own.Set(certificate, key, prepared.Authority.CertificatePEM()))
	c := &leaderClient{
		Pool:    connpool.New(connpool.Options{Credentials: own.Credentials(servertest.ClusterID)}),
		t:       t,
		groups:  informer.NewGroups(informer.Options{}),
		notices: informer.NewNotices(),
	}
	c.Set(map[string]shard.Endpoint{leaderShard: {Operator: address}})
	runtest.Start(t, func(ctx context.Context) {
		c.Run(ctx, func(ctx context.Context, id string, client nstancev1.OperatorServiceClient) {
			var caches sync.WaitGroup
			caches.Go(func() { c.groups.Serve(ctx, id, client) })
			caches.Go(func() { c.notices.Serve(ctx, id, client) })
			caches.Wait()
		})
	})
	return c
}

// follow waits until the watches were opened again since the call before, and expects that a
// group that is created now is received.
func (c *leaderClient) follow(group string) {
	c.t.Helper()
	runtest.Eventually(c.t, "the watch of instances is open", func() bool {
		return c.notices.Settled(leaderShard) && c.notices.Session(leaderShard) > c.session
	})
	c.session = c.notices.Session(leaderShard)
	runtest.Eventually(c.t, "the leader accepts a group", func() bool {
		_, err := c.UpsertGroup(c.t.Context(), leaderShard, group, shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "worker"}})
		return err == nil
	})
	runtest.Eventually(c.t, "the shard is reachable, and has the group", func() bool {
		reachable, _ := c.groups.Reachable(leaderShard)
		_, received := c.groups.Get(leaderShard, group)
		return reachable && received
	})
}

// TestTheAddressFollowsTheLeader pauses the leader of two servers. The other one gets the
// address, and the watches of an operator follow with one connection. When the first one
// continues, it takes nothing back.
func TestTheAddressFollowsTheLeader(t *testing.T) {
	prepared := servertest.Prepare(t, servertest.Options{
		Shard:      leaderShard,
		HealthAddr: "127.0.0.1:8990", RegistrationAddr: "0.0.0.0:8992", Addr: "0.0.0.0:8993",
		LeaderNetwork: `{"ip": "` + leaderAddress + `", "interface_id": "eni-1"}`,
	})
	text, err := os.ReadFile(prepared.ConfigPath())
	require.NoError(t, err)
	election := `"leader_election": {"interval": "1s", "timeout": "6s"}, "default_drain_timeout"`
	require.NoError(t, os.WriteFile(prepared.ConfigPath(), bytes.Replace(text, []byte(`"default_drain_timeout"`), []byte(election), 1), 0o600))

	cloud := providertest.NewNetworkCloud()
	api := httptest.NewServer(cloud)
	defer api.Close()
	a := startMachine(t, "a", prepared.DataDir, api.URL)
	runtest.Eventually(t, "a machine has the address", func() bool { return cloud.Owner() == "a" })
	b := startMachine(t, "b", prepared.DataDir, api.URL)
	network := startNetwork(t, cloud, map[string]*machine{"a": a, "b": b})
	operator := startLeaderClient(t, prepared, network.addr)
	operator.follow("first")
	require.EqualValues(t, 1, network.accepted.Load(), "connections of the operator")

	pauseWithoutLock(t, prepared, a)
	operator.follow("second")
	assert.EqualValues(t, 2, network.accepted.Load(), "connections of the operator")
	assert.Equal(t, []string{"a", "b"}, cloud.Owners())

	cloud.Changes()
	var tried atomic.Int32
	cloud.Changing = func() { tried.Add(1) }
	a.signal(t, syscall.SIGCONT)
	runtest.Eventually(t, "the first leader has noticed that it does not lead", func() bool {
		return strings.Contains(a.log.String(), "Released the address of the leader")
	})
	assert.Zero(t, tried.Load(), "calls for changes by the server that was paused")
	assert.Equal(t, "b", cloud.Owner())
	assert.EqualValues(t, 2, network.accepted.Load(), "connections of the operator")

	// An orderly end releases the address, and the other server gets it.
	require.NoError(t, b.stdin.Close())
	operator.follow("third")
	assert.Equal(t, []string{"a", "b", "a"}, cloud.Owners())
	assert.Contains(t, b.log.String(), "Released the address of the leader")
	require.NoError(t, b.cmd.Wait())
	for _, group := range []string{"first", "second"} {
		_, kept := operator.groups.Get(leaderShard, group)
		assert.True(t, kept, "group %s, which was created before", group)
	}
}
