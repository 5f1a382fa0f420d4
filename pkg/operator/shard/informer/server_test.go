// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer_test

import (
	"net"
	"os"
	"path/filepath"
	"reflect"
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
	if reply := o.scale(t, 2); !reply.ListsInstances || len(reply.RemoveFirst) > 0 || reply.Shape == nil {
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

	// The reply to a call has the new configuration, and removes no instances from the cache.
	removeFirst := []string{group.Instances[1].ID}
	reply, err := o.UpsertGroup(t.Context(), shardID, "workers", shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "worker"}, Size: 1, RemoveFirst: removeFirst})
	require.NoError(t, err)
	reply.Instances = nil
	o.Groups.Observe(shardID, reply)
	if got, _ := o.Groups.Get(shardID, "workers"); !slices.Equal(got.RemoveFirst, removeFirst) || !got.ListsInstances || len(got.Instances) == 0 || got.Shape == nil {
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

// With a wrong address, the state of the other shard is not read, and no request is sent.
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

// TestSilentShardKeepsNoOtherFromWorking uses real connections.
// TestUnreachableShardDelaysNoOther of package connpool tests on a fake clock that the other
// shards are not slower.
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

// drainTimeout is longer than any test takes.
const drainTimeout = time.Hour

// startDraining starts an operator and a server with n running instances, and drains
// them.
func startDraining(t *testing.T, n int32) (*operator, *servertest.Server, shard.Group) {
	t.Helper()
	o := startOperator(t, nil)
	server := servertest.Start(t, servertest.Options{Authority: o.Authority, DrainTimeout: drainTimeout.String()})
	o.set(map[string]string{shardID: server.Addr})
	o.expectReachable(t, true)
	o.expectSettled(t, true)
	o.scale(t, n)
	group := o.expectInstances(t, "workers", int(n))
	if got := o.receivedNotices(); got != nil {
		t.Errorf("there are notices of running instances: %+v", got)
	}
	o.scale(t, 0)
	o.expectNotices(t, int(n), shard.Draining)
	return o, server, group
}

func TestHandlersReceiveEachOfManyDrainsOnce(t *testing.T) {
	const n = 200
	start := time.Now()
	o, server, group := startDraining(t, n)
	drains := o.receivedNotices()
	if len(drains) != n {
		t.Errorf("handlers received %d notices of %d drains", len(drains), n)
	}
	var providerIDs []string
	for _, got := range drains {
		providerIDs = append(providerIDs, got.ProviderID)
		want := shard.DeletionNotice{
			InstanceID: got.InstanceID, ProviderID: got.ProviderID, Group: "workers", State: shard.Draining, Reason: "scale-down",
			Since: got.Since, DeleteAt: got.Since.Add(drainTimeout), Deadline: got.Deadline, Announced: got.Announced,
		}
		if got.Deadline.Before(start.Add(drainTimeout)) || got.Deadline.After(time.Now().Add(drainTimeout)) {
			t.Errorf("the deadline is %s, %s after the announcement began", got.Deadline, got.Deadline.Sub(start))
		}
		if !reflect.DeepEqual(got, want) || got.InstanceID == "" || got.Announced == 0 || got.Since.Before(start) || got.Since.After(time.Now()) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	slices.Sort(providerIDs)
	if !slices.Equal(providerIDs, group.ProviderIDs) {
		t.Error("the provider ids are not those of the group")
	}

	for _, drain := range drains {
		require.NoError(t, o.AcknowledgeDrained(t.Context(), shardID, drain.InstanceID))
	}
	for _, notice := range o.expectNotices(t, n, shard.Deleted) {
		if notice.Group != "workers" || notice.ProviderID == "" || notice.Reason != "scale-down" {
			t.Errorf("the notice of the deletion is %+v", notice)
		}
	}
	if got := len(server.Calls("WatchInstances")); got != 1 {
		t.Errorf("the watch was opened %d times, want once", got)
	}
}

func TestReconnectionAnnouncesDrainsAgain(t *testing.T) {
	o, first, _ := startDraining(t, 2)
	before, session := o.Notices.List(shardID), o.Notices.Session(shardID)

	first.Kill()
	o.expectSettled(t, false)
	if got := o.Notices.List(shardID); !reflect.DeepEqual(got, before) {
		t.Errorf("during the outage the cache has %+v, want %+v", got, before)
	}
	servertest.Start(t, servertest.Options{
		Authority: o.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes, Addr: first.Addr, DrainTimeout: drainTimeout.String(),
	})
	o.expectSettled(t, true)
	if got := o.Notices.Session(shardID); got <= session {
		t.Errorf("the session is %d after %d", got, session)
	}
	for n, after := range o.expectNotices(t, 2, shard.Draining) {
		if after.InstanceID != before[n].InstanceID || after.Announced <= before[n].Announced || !after.DeleteAt.Equal(before[n].DeleteAt) {
			t.Errorf("after the outage there is %+v, before there was %+v", after, before[n])
		}
	}
	if got := len(o.receivedNotices()); got != 4 {
		t.Errorf("handlers received %d notices, want one for each drain and connection", got)
	}
	for _, drain := range before {
		require.NoError(t, o.AcknowledgeDrained(t.Context(), shardID, drain.InstanceID))
	}
	o.expectNotices(t, 2, shard.Deleted)
}

// The new leader does not have the cache of the former leader, and the group's size keeps the
// instances.
func TestNewLeaderWithoutCacheWithdrawsDrains(t *testing.T) {
	o := startOperator(t, nil)
	options := servertest.Options{
		Authority: o.Authority, DrainTimeout: drainTimeout.String(),
		Groups: `{"default": {"workers": {"template": "worker", "size": 2}}}`,
	}
	first := servertest.Start(t, options)
	o.set(map[string]string{shardID: first.Addr})
	o.expectInstances(t, "workers", 2)
	first.SetConfig(func(o *servertest.Options) { o.Groups = `{"default": {"workers": {"template": "worker", "size": 0}}}` })
	o.expectNotices(t, 2, shard.Draining)
	o.expectSettled(t, true)

	first.Kill()
	o.expectSettled(t, false)
	require.NoError(t, os.RemoveAll(filepath.Join(first.DataDir, "cache")))
	options.DataDir, options.Kubernetes, options.Addr = first.DataDir, first.Kubernetes, first.Addr
	servertest.Start(t, options)
	o.expectSettled(t, true)
	if got := o.Notices.List(shardID); len(got) != 0 {
		t.Errorf("after it has settled the cache has %+v", got)
	}
	if got := o.expectInstances(t, "workers", 2); got.Size != 2 {
		t.Errorf("the group is %+v", got)
	}
}

func TestNoticesOfAShardThatIsRemovedAreDropped(t *testing.T) {
	o, _, _ := startDraining(t, 2)
	o.set(nil)
	o.eventually(t, "the notices are dropped", func() bool { return len(o.Notices.List(shardID)) == 0 })
	o.eventually(t, "the groups are dropped", func() bool { return len(o.Groups.List(shardID)) == 0 })
	if o.Notices.Settled(shardID) || o.Notices.Session(shardID) != 0 {
		t.Error("a removed shard has settled")
	}
}
