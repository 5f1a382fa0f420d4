// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer_test

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
)

func TestSnapshotAndLiveChanges(t *testing.T) {
	o := startOperator(t, nil)
	server := servertest.Start(t, servertest.Options{
		Authority: o.Authority,
		Groups:    `{"default": {"static": {"template": "worker", "size": 2}}, "other": {"hidden": {"template": "worker", "size": 1}}}`,
	})
	o.set(map[string]string{shardID: server.Addr})
	o.expectReachable(t, true)
	if !o.Groups.HasSynced(shardID) {
		t.Error("reachable but not synced")
	}
	static := o.expectInstances(t, "static", 2)
	if !static.Static || static.Template != "worker" || static.Size != 2 || static.Tenant != "default" {
		t.Errorf("the static group is %+v", static)
	}

	reply := o.scale(t, 3)
	if got, ok := o.Groups.Get(shardID, "workers"); !ok || got.Size != 3 || got.ETag != reply.ETag {
		t.Errorf("right after the write the cache has %+v", got)
	}
	o.expectInstances(t, "workers", 3)
	if got := len(o.Groups.List(shardID)); got != 2 {
		t.Errorf("%d groups, want the 2 of the tenant", got)
	}

	require.NoError(t, o.DeleteGroup(t.Context(), shardID, "workers", nil))
	o.eventually(t, "group workers is deleted", func() bool {
		_, ok := o.Groups.Get(shardID, "workers")
		return !ok
	})
	if got := len(server.Calls("WatchGroups")); got != 1 {
		t.Errorf("the watch was opened %d times, want once", got)
	}
}

func TestManagedInstancesAreListed(t *testing.T) {
	o := startOperator(t, nil)
	server := servertest.Start(t, servertest.Options{Authority: o.Authority})
	o.set(map[string]string{shardID: server.Addr})
	o.expectReachable(t, true)
	if reply := o.scale(t, 2); !reply.ListsInstances || len(reply.RemoveFirst) > 0 || reply.Node == nil {
		t.Errorf("the reply is %+v", reply)
	}
	var group shard.Group
	o.eventually(t, "both instances are listed and run", func() bool {
		group, _ = o.Groups.Get(shardID, "workers")
		return group.ListsInstances && len(group.Instances) == 2 &&
			group.Instances[0].State == shard.InstanceRunning && group.Instances[1].State == shard.InstanceRunning
	})
	for _, instance := range group.Instances {
		if instance.ID == "" || !slices.Contains(group.ProviderIDs, instance.ProviderID) {
			t.Errorf("%+v has none of the provider ids %q", instance, group.ProviderIDs)
		}
	}

	// The reply to a call has the new configuration, and removes no instances from the
	// cache.
	removeFirst := []string{group.Instances[1].ID}
	reply, err := o.UpsertGroup(t.Context(), shardID, "workers", shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "worker"}, Size: 1, RemoveFirst: removeFirst})
	require.NoError(t, err)
	reply.Instances = nil
	o.Groups.Observe(shardID, reply)
	if got, _ := o.Groups.Get(shardID, "workers"); !slices.Equal(got.RemoveFirst, removeFirst) || !got.ListsInstances || len(got.Instances) == 0 || got.Node == nil {
		t.Errorf("right after the call the cache has %+v", got)
	}
	o.eventually(t, "the other is the only one", func() bool {
		got, _ := o.Groups.Get(shardID, "workers")
		return len(got.Instances) == 1 && got.Instances[0].ID == group.Instances[0].ID && got.ActualSize == 1
	})
}

func TestRejectionsKeepTheServersMessage(t *testing.T) {
	o := startOperator(t, nil)
	server := servertest.Start(t, servertest.Options{
		Authority: o.Authority,
		Groups:    `{"default": {"static": {"template": "worker", "size": 0}}}`,
	})
	o.set(map[string]string{shardID: server.Addr})
	o.expectReachable(t, true)
	for _, test := range []struct {
		name, key string
		config    shard.GroupConfig
	}{
		{"ill-formed key", "No--Key", shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "worker"}}},
		{"unknown template", "workers", shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "unknown"}}},
		{"subnets of a static group", "static", shard.GroupConfig{GroupSettings: shard.GroupSettings{Subnets: []string{"another"}}}},
	} {
		_, err := o.UpsertGroup(t.Context(), shardID, test.key, test.config)
		if !shard.IsRejected(err) || shard.IsUnreachable(err) || shard.Message(err) == "" {
			t.Errorf("%s: got error %v", test.name, err)
		}
		t.Logf("%s: %s", test.name, shard.Message(err))
	}
}

func TestErrorsOfTheServerAreReceived(t *testing.T) {
	o := startOperator(t, nil)
	server := servertest.Start(t, servertest.Options{Authority: o.Authority, Quota: `{"m7i.large": 1}`})
	o.set(map[string]string{shardID: server.Addr})
	o.expectReachable(t, true)
	start := time.Now()
	o.scale(t, 2)
	o.eventually(t, "the error about the instance that cannot be created is received", func() bool { return len(o.reportedErrors()) > 0 })
	got := o.reportedErrors()[0]
	if got.Group != "workers" || !strings.Contains(got.Message, "quota") || got.Time.Before(start) || got.Time.After(time.Now()) {
		t.Errorf("got %+v", got)
	}
	if ok, err := o.Groups.Reachable(shardID); !ok {
		t.Errorf("not reachable: %v", err)
	}
	if group := o.expectInstances(t, "workers", 1); group.Size != 2 {
		t.Errorf("the group has size %d", group.Size)
	}
}

func TestOutageKeepsTheCacheAndRecoveryUpdatesIt(t *testing.T) {
	o := startOperator(t, nil)
	first := servertest.Start(t, servertest.Options{
		Authority: o.Authority,
		Groups:    `{"default": {"static": {"template": "worker", "size": 0}}}`,
	})
	o.set(map[string]string{shardID: first.Addr})
	o.expectReachable(t, true)
	o.scale(t, 2)
	before := o.expectInstances(t, "workers", 2)
	o.expectInstances(t, "static", 0)

	first.Kill()
	o.expectReachable(t, false)
	if _, err := o.Groups.Reachable(shardID); !shard.IsUnreachable(err) {
		t.Errorf("the reason is %v", err)
	}
	if got, ok := o.Groups.Get(shardID, "workers"); !ok || !got.Equal(before) {
		t.Errorf("during the outage the cache has %+v, want what was last reported: %+v", got, before)
	}
	if !o.Groups.HasSynced(shardID) {
		t.Error("the outage makes the cache incomplete")
	}
	if _, err := o.UpsertGroup(t.Context(), shardID, "workers", shard.GroupConfig{Size: 5}); !shard.IsUnreachable(err) {
		t.Errorf("a call during the outage: got error %v", err)
	}

	// The next server has the same address, and the static group is no longer in its
	// configuration.
	second := servertest.Start(t, servertest.Options{
		Authority: o.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes, Addr: first.Addr,
	})
	o.expectReachable(t, true)
	o.eventually(t, "the group is not static", func() bool {
		group, ok := o.Groups.Get(shardID, "static")
		return ok && !group.Static
	})
	after := o.expectInstances(t, "workers", 2)
	if !slices.Equal(after.ProviderIDs, before.ProviderIDs) {
		t.Errorf("after the outage the instances are %v, want %v", after.ProviderIDs, before.ProviderIDs)
	}
	o.scale(t, 1)
	o.expectInstances(t, "workers", 1)
	if got := len(second.Upserts("workers")); got != 1 {
		t.Errorf("the server received %d upserts, want 1", got)
	}
}

func TestRemovedShardIsDroppedAndMovedShardIsNot(t *testing.T) {
	o := startOperator(t, nil)
	groups := `{"default": {"workers": {"template": "worker", "size": 1}}}`
	first := servertest.Start(t, servertest.Options{Authority: o.Authority, Groups: groups})
	second := servertest.Start(t, servertest.Options{Authority: o.Authority, Groups: groups})
	o.set(map[string]string{shardID: first.Addr})
	o.expectInstances(t, "workers", 1)

	o.set(map[string]string{shardID: second.Addr})
	o.eventually(t, "the new address is watched", func() bool {
		if _, ok := o.Groups.Get(shardID, "workers"); !ok {
			t.Error("the move emptied the cache")
		}
		ok, _ := o.Groups.Reachable(shardID)
		return ok && len(second.Calls("WatchGroups")) == 1
	})
	if !o.Groups.HasSynced(shardID) {
		t.Error("not synced with the new address")
	}

	o.set(nil)
	o.eventually(t, "the cache of the removed shard is dropped", func() bool { return len(o.Groups.List(shardID)) == 0 })
	if o.Groups.HasSynced(shardID) {
		t.Error("a removed shard has synced")
	}
	if ok, err := o.Groups.Reachable(shardID); ok || err != nil {
		t.Errorf("a removed shard is reachable: %t, %v", ok, err)
	}
}

// A wrong address changes nothing: what the other shard has is not read, and nothing is
// sent there.
func TestServerOfAnotherShardIsNotRead(t *testing.T) {
	o := startOperator(t, nil)
	right := servertest.Start(t, servertest.Options{Authority: o.Authority,
		Groups: `{"default": {"workers": {"template": "worker", "size": 1}}}`})
	wrong := servertest.Start(t, servertest.Options{Authority: o.Authority, Shard: "us-west-2b",
		Groups: `{"default": {"others": {"template": "worker", "size": 1}}}`})
	o.set(map[string]string{shardID: right.Addr})
	o.expectInstances(t, "workers", 1)
	before := o.Groups.List(shardID)

	o.set(map[string]string{shardID: wrong.Addr})
	o.eventually(t, "the reason is the wrong server", func() bool {
		ok, err := o.Groups.Reachable(shardID)
		return !ok && shard.IsWrongServer(err)
	})
	_, err := o.UpsertGroup(t.Context(), shardID, "workers", shard.GroupConfig{Size: 2})
	if !shard.IsWrongServer(err) || !shard.IsUnreachable(err) {
		t.Errorf("a call to the wrong server: got error %v", err)
	}
	if got := o.Groups.List(shardID); !slices.EqualFunc(got, before, shard.Group.Equal) {
		t.Errorf("the groups became %v, they were %v", got, before)
	}
	if o.Groups.HasSynced(shardID) {
		t.Error("synced with the wrong server")
	}
	for _, method := range []string{"ListGroups", "WatchGroups", "WatchInstances", "UpsertGroup"} {
		if calls := wrong.Calls(method); len(calls) > 0 {
			t.Errorf("the wrong server received %d calls of %s", len(calls), method)
		}
	}

	o.set(map[string]string{shardID: right.Addr})
	o.expectReachable(t, true)
}

// TestSilentShardKeepsNoOtherFromWorking uses real connections. On a fake clock,
// TestUnreachableShardDelaysNoOther of package connpool tests that the other shards take no
// longer.
func TestSilentShardKeepsNoOtherFromWorking(t *testing.T) {
	// A listener without Accept: connections are opened, but no TLS handshake starts.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	o := startOperator(t, map[string]string{"silent": silent.Addr().String()})
	server := servertest.Start(t, servertest.Options{Authority: o.Authority})
	o.set(map[string]string{"silent": silent.Addr().String(), shardID: server.Addr})
	o.expectReachable(t, true)
	o.scale(t, 1)
	if ok, _ := o.Groups.Reachable("silent"); ok || o.Groups.HasSynced("silent") || o.Groups.Synced([]string{shardID, "silent"}) {
		t.Error("a shard that does not respond is reachable or synced")
	}
	o.eventually(t, "there is a reason for the silent shard", func() bool {
		_, err := o.Groups.Reachable("silent")
		return shard.IsUnreachable(err)
	})
}

func TestRotationNeedsNoRestart(t *testing.T) {
	o := startOperator(t, nil)
	former := servertest.Start(t, servertest.Options{Authority: o.Authority})
	o.set(map[string]string{shardID: former.Addr})
	o.expectReachable(t, true)
	o.scale(t, 0)

	// A new authority and a new certificate. Existing connections stay open.
	o.Authority = pkitest.NewAuthority(t)
	o.SetIdentity("second")
	o.scale(t, 1)
	if ok, err := o.Groups.Reachable(shardID); !ok {
		t.Errorf("the rotation broke the connection: %v", err)
	}

	// The next server has a certificate of the new authority, and trusts no other.
	former.Kill()
	o.expectReachable(t, false)
	for _, key := range []string{storage.AuthorityKey, storage.SecretPrefix + "ca.key"} {
		require.NoError(t, former.Storage.Delete(t.Context(), key))
	}
	servertest.Start(t, servertest.Options{
		Authority: o.Authority, DataDir: former.DataDir, Kubernetes: former.Kubernetes, Addr: former.Addr,
	})
	o.expectReachable(t, true)
	o.scale(t, 2)
	o.expectInstances(t, "workers", 2)
}
