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

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

// leaderAddress is the address of the leader, which the certificate of the servers must
// have. The test forwards its connections to the machine that has it in the cloud.
const leaderAddress = "127.0.2.10"

// leaderShard is the shard of the servers.
const leaderShard = "us-west-2a"

// ipNetwork forwards the connections to the address of the leader to the machine that has it.
// When another machine gets it, the connections to the previous machine break.
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

// follow waits until the watches of an operator were opened again since a session, expects
// that it receives a group that is created now, and returns its present session.
func follow(t *testing.T, operator *shardtest.Servers, since int64, group string) (session int64) {
	t.Helper()
	runtest.Eventually(t, "the watch of instances is open", func() bool {
		session = operator.Notices.Session(leaderShard)
		return session > since
	})
	runtest.Eventually(t, "the leader accepts a group", func() bool {
		_, err := operator.UpsertGroup(t.Context(), leaderShard, group, shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "worker"}})
		return err == nil
	})
	operator.AwaitReachable()
	runtest.Eventually(t, "the group is received", func() bool {
		_, received := operator.Groups.Get(leaderShard, group)
		return received
	})
	return session
}

// TestTheAddressFollowsTheLeader pauses the leader of two servers. The other server gets the
// address, and the watches of an operator follow with one connection. When the first server
// continues, it does not take the address back.
func TestTheAddressFollowsTheLeader(t *testing.T) {
	operator := shardtest.StartServers(t)
	prepared := servertest.Prepare(t, servertest.Options{
		Authority: operator.Authority, Shard: leaderShard,
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
	operator.Set(map[string]shard.Endpoint{leaderShard: {Operator: network.addr}})
	operator.Connect()
	session := follow(t, operator, 0, "first")
	require.EqualValues(t, 1, network.accepted.Load(), "connections of the operator")

	pauseWithoutLock(t, prepared, a)
	session = follow(t, operator, session, "second")
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
	follow(t, operator, session, "third")
	assert.Equal(t, []string{"a", "b", "a"}, cloud.Owners())
	assert.Contains(t, b.log.String(), "Released the address of the leader")
	require.NoError(t, b.cmd.Wait())
	for _, group := range []string{"first", "second"} {
		_, kept := operator.Groups.Get(leaderShard, group)
		assert.True(t, kept, "group %s, which was created before", group)
	}
}
