// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/server/servertest"
)

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
		if got != want || got.InstanceID == "" || got.Announced == 0 || got.Since.Before(start) || got.Since.After(time.Now()) {
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
	if got := o.Notices.List(shardID); !slices.Equal(got, before) {
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

// The new leader does not have the cache of the former one, and the size of the group
// keeps the instances.
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
