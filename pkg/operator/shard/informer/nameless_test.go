// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/informer"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

const otherID = "us-west-2b"

// startNameless starts the servers of two shards whose certificates name no shard, with a
// group each.
func startNameless(t *testing.T, o *operator) (own, other *servertest.Server) {
	t.Helper()
	start := func(id string) *servertest.Server {
		return servertest.Start(t, servertest.Options{
			Authority: o.Authority, Nameless: true, Shard: id,
			Groups: `{"default": {"static": {"template": "worker", "size": 2}}}`,
		})
	}
	return start(shardID), start(otherID)
}

// expectWrongServer waits until the server of the shard is known to be wrong, and returns the
// message.
func (o *operator) expectWrongServer(t *testing.T) string {
	t.Helper()
	var reason error
	o.eventually(t, "the server is wrong", func() bool {
		var reachable bool
		reachable, reason = o.Groups.Reachable(shardID)
		return !reachable && shard.IsWrongServer(reason)
	})
	return shard.Message(reason)
}

// expectNoCalls makes every call that changes something or whose reply is used, and checks
// that the server receives no call.
func (o *operator) expectNoCalls(t *testing.T, server *servertest.Server, instance string) {
	t.Helper()
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"UpsertGroup": func() error {
			_, err := o.UpsertGroup(ctx, shardID, "workers", shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "worker"}, Size: 1})
			return err
		},
		"DeleteGroup": func() error { return o.DeleteGroup(ctx, shardID, "static", nil) },
		"CreateInstance": func() error {
			_, err := o.CreateInstance(ctx, shardID, "request", shard.InstanceSpec{Group: "static"})
			return err
		},
		"GetInstanceStatus": func() error {
			_, err := o.GetInstance(ctx, shardID, instance)
			return err
		},
		"DeleteInstance": func() error {
			_, err := o.DeleteInstance(ctx, shardID, instance)
			return err
		},
		"AcknowledgeDrained": func() error { return o.AcknowledgeDrained(ctx, shardID, instance) },
		"RenewCertificate": func() error {
			_, err := o.RenewCertificate(ctx, shardID, keys.Request{PublicKeyPEM: []byte("key")})
			return err
		},
	} {
		before := len(server.Calls(name))
		if err := call(); !shard.IsWrongServer(err) || !shard.IsUnreachable(err) {
			t.Errorf("%s: got error %v", name, err)
		}
		assert.Len(t, server.Calls(name), before, "calls of %s", name)
	}
}

func TestAddressOfANamelessServerOfAnotherShard(t *testing.T) {
	o := startOperator(t, nil)
	own, other := startNameless(t, o)
	o.set(map[string]string{shardID: own.Addr, otherID: other.Addr})
	o.expectReachable(t, true)
	static := o.expectInstances(t, "static", 2)
	instance := static.Instances[0].ID
	assert.Len(t, own.Calls("ListGroups"), 2, "lists")

	o.set(map[string]string{shardID: other.Addr, otherID: own.Addr})
	assert.Equal(t, "the server at "+other.Addr+" names no shard and has none of the 2 known instances of the shard; confirm the address", o.expectWrongServer(t))
	o.expectNoCalls(t, other, instance)
	cached, _ := o.Groups.Get(shardID, "static")
	assert.Equal(t, static.ProviderIDs, cached.ProviderIDs)

	o.set(map[string]string{shardID: own.Addr, otherID: other.Addr})
	o.expectReachable(t, true)
	_, err := o.GetInstance(t.Context(), shardID, instance)
	require.NoError(t, err)
	o.scale(t, 1)
	o.expectInstances(t, "workers", 1)
}

func TestRestartAtTheAddressOfANamelessServerOfAnotherShard(t *testing.T) {
	o := startOperator(t, nil)
	own, other := startNameless(t, o)
	o.Known = map[string]informer.Known{shardID: {ProviderIDs: []string{"known-1", "known-2", "known-3"}}}
	o.set(map[string]string{shardID: other.Addr})
	assert.Equal(t, "the server at "+other.Addr+" names no shard and has none of the 3 known instances of the shard; confirm the address", o.expectWrongServer(t))
	assert.False(t, o.Groups.HasSynced(shardID))
	assert.Empty(t, o.Groups.List(shardID))
	o.expectNoCalls(t, other, "knd06bgm7733st2576nx5jht4ecjw")

	// The confirmation of another address has no effect, the confirmation of this address has.
	o.Confirm(shardID, own.Addr)
	lists := len(other.Calls("ListGroups"))
	o.awaitCalls(t, other, "ListGroups", lists+2)
	o.expectWrongServer(t)
	o.Confirm(shardID, other.Addr)
	o.expectReachable(t, true)
	o.scale(t, 1)
	o.expectInstances(t, "workers", 1)
}

// awaitCalls waits until a server has received n calls of a method.
func (o *operator) awaitCalls(t *testing.T, server *servertest.Server, method string, n int) {
	t.Helper()
	runtest.Eventually(t, "the calls are received", func() bool { return len(server.Calls(method)) >= n })
}

// An on-demand instance is not listed, so the server is queried for it.
func TestOnDemandInstanceVerifiesTheServer(t *testing.T) {
	o := startOperator(t, nil)
	own := servertest.Start(t, servertest.Options{Authority: o.Authority, Nameless: true, Groups: `{"default": {"static": {"template": "worker", "size": 0}}}`})
	o.set(map[string]string{shardID: own.Addr})
	o.expectReachable(t, true)
	created, err := o.CreateInstance(t.Context(), shardID, "request", shard.InstanceSpec{Group: "static"})
	require.NoError(t, err)
	other := servertest.Start(t, servertest.Options{Authority: o.Authority, Nameless: true, Shard: otherID})

	for _, test := range []struct {
		name   string
		server *servertest.Server
		wrong  bool
	}{{"the server of the shard", own, false}, {"another one", other, true}} {
		restarted := startOperator(t, nil)
		restarted.Authority = o.Authority
		restarted.SetIdentity("operator")
		restarted.Known = map[string]informer.Known{shardID: {OnDemand: []string{created.ID}}}
		restarted.set(map[string]string{shardID: test.server.Addr})
		if test.wrong {
			restarted.expectWrongServer(t)
			restarted.expectNoCalls(t, other, created.ID)
			continue
		}
		restarted.expectReachable(t, true)
		assert.Len(t, own.Calls("GetInstanceStatus"), 1, test.name)
	}
}

// A server that names its shard needs no further call.
func TestServerThatNamesItsShardIsNotVerified(t *testing.T) {
	o := startOperator(t, nil)
	server := servertest.Start(t, servertest.Options{Authority: o.Authority})
	o.Known = map[string]informer.Known{shardID: {ProviderIDs: []string{"known-1"}, OnDemand: []string{"knd06bgm7733st2576nx5jht4ecjw"}}}
	o.set(map[string]string{shardID: server.Addr})
	o.expectReachable(t, true)
	o.expectSettled(t, true)
	for _, method := range []string{"ListGroups", "WatchGroups", "WatchErrors", "WatchInstances"} {
		assert.Len(t, server.Calls(method), 1, method)
	}
	assert.Empty(t, server.Calls("GetInstanceStatus"))
}
