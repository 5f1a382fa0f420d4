// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
)

func TestStateFromProvider(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	check := func(when string, state instance.State, known bool) {
		t.Helper()
		i := s.want(record.ID)
		if i.State != state || i.Known != known {
			t.Errorf("%s: is in state %v, known %t, want %v, %t", when, i.State, i.Known, state, known)
		}
		if diff := cmp.Diff([]instance.Instance{i}, s.List(group)); diff != "" {
			t.Errorf("%s (-Get +List):\n%s", when, diff)
		}
	}
	check("before it is created", instance.Pending, false)
	for _, state := range []instance.State{instance.Pending, instance.Running, instance.Impaired, instance.Stopped, instance.Failed, instance.Terminating} {
		s.cloud.show(t, vmOf(record, state))
		check("as the provider reports", state, true)
	}
	s.cloud.remove(t, record.ID)
	check("seen and deleted", instance.Missing, false)

	// After a restart only the provider id shows that the instance existed.
	s.restart()
	check("deleted, after a restart", instance.Pending, false)
	require.NoError(s.t, s.SetProviderID(t.Context(), record.ID, "cloud:///"+record.ID))
	check("with a provider id", instance.Missing, false)
	s.restart()
	check("with a provider id, after a restart", instance.Missing, false)
}

// TestAnInstanceThatNeedsANewRequest is not missing, although its provider has listed it. With a
// provider id it is.
func TestAnInstanceThatNeedsANewRequest(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	s.cloud.show(t, vmOf(record, instance.Pending))
	s.want(record.ID)
	s.cloud.remove(t, record.ID)
	require.Equal(t, instance.Missing, s.want(record.ID).State)
	s.cloud.renewed = record.ID
	i := s.want(record.ID)
	require.Equal(t, instance.Pending, i.State)
	require.False(t, i.Known)
	require.NoError(t, s.SetProviderID(t.Context(), record.ID, "cloud:///1"))
	require.Equal(t, instance.Missing, s.want(record.ID).State)
}

// TestNotMissingBeforeTheProviderIsSynced checks that an instance that is not
// known yet would not be replaced.
func TestNotMissingBeforeTheProviderIsSynced(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	require.NoError(s.t, s.SetProviderID(t.Context(), record.ID, "cloud:///1"))
	s.cloud.SyncedCh = make(chan struct{})
	if state := s.want(record.ID).State; state != instance.Pending {
		t.Errorf("before: is in state %v", state)
	}
	close(s.cloud.SyncedCh)
	if state := s.want(record.ID).State; state != instance.Missing {
		t.Errorf("after: is in state %v", state)
	}
}

// What tenants use is counted while instances are created and deleted, and again after a
// restart, with the cache and without it.
func TestUsageOfOnDemandInstances(t *testing.T) {
	s := newShard(t, t.TempDir())
	usage := func(when string, instances, bytes int) {
		t.Helper()
		require.Equal(t, instancestore.Usage{Instances: instances, Bytes: bytes}, s.OnDemand("default"), when)
	}
	usage("at first", 0, 0)
	s.add(func(r *instance.Record) { r.Vars = map[string]string{"managed": "instance"} })
	usage("with a managed instance", 0, 0)
	first := s.add(onDemand("key"), func(r *instance.Record) { r.Vars = map[string]string{"ab": "c", "d": ""} })
	s.add(onDemand(""), func(r *instance.Record) { r.Group = "others" })
	s.add(onDemand("1234567"), func(r *instance.Record) { r.Tenant = "acme" })
	usage("with two on-demand instances", 2, 7)
	require.NoError(t, s.SetProviderID(t.Context(), first.ID, "cloud:///1"))
	usage("after a change", 2, 7)
	s.restart()
	usage("after a restart", 2, 7)
	s.close()
	s.loseCache()
	s.open(instancestore.Options{})
	usage("without the cache", 2, 7)
	require.NoError(t, s.SetDeleting(t.Context(), first.ID, instance.ReasonRequested))
	require.NoError(t, s.Remove(t.Context(), first.ID))
	usage("after a deletion", 1, 7)
	s.restart()
	usage("after a deletion and a restart", 1, 7)
	s.Purge(t.Context(), epoch.Add(time.Hour))
	usage("when it is forgotten", 1, 0)
	require.Equal(t, instancestore.Usage{Instances: 1, Bytes: 7}, s.OnDemand("acme"))
}

// Deleted instances count too, also after a restart: the instances of a tenant that creates and
// deletes them are not less for that.
func TestOnDemandInstancesAreCountedByTheirAge(t *testing.T) {
	s := newShard(t, t.TempDir())
	created := func(at time.Time) func(*instance.Record) {
		return func(r *instance.Record) { r.CreatedAt = at }
	}
	s.add(onDemand("old"), created(epoch))
	young := s.add(onDemand("young"), created(epoch.Add(time.Minute)))
	s.add(onDemand("other"), created(epoch.Add(time.Minute)), func(r *instance.Record) { r.Tenant = "acme" })
	s.add(created(epoch.Add(time.Minute)))
	require.Equal(t, 1, s.CreatedAfter("default", epoch))
	require.Equal(t, 2, s.CreatedAfter("default", epoch.Add(-time.Second)))
	require.NoError(t, s.SetDeleting(t.Context(), young.ID, instance.ReasonRequested))
	require.NoError(t, s.Remove(t.Context(), young.ID))
	require.Equal(t, 1, s.CreatedAfter("default", epoch), "after a deletion")
	s.restart()
	require.Equal(t, 1, s.CreatedAfter("default", epoch), "after a deletion and a restart")
}

func TestListIsOrderedByAge(t *testing.T) {
	s := newShard(t, t.TempDir())
	var want []string
	for range 3 {
		// Same age: ordered by id.
		want = append(want, s.add().ID)
	}
	older := s.add(func(r *instance.Record) { r.CreatedAt = epoch.Add(-time.Hour) }).ID
	younger := s.add(func(r *instance.Record) { r.CreatedAt = epoch.Add(time.Hour) }).ID
	middle := s.add(onDemand("")).ID
	s.add(func(r *instance.Record) { r.Group = "others" })
	s.add(func(r *instance.Record) { r.Tenant = "acme" })
	want = append(append([]string{older}, want...), middle, younger)
	if diff := cmp.Diff(want, ids(s.List(group))); diff != "" {
		t.Errorf("(-want +listed):\n%s", diff)
	}
	s.restart()
	if diff := cmp.Diff(want, ids(s.List(group))); diff != "" {
		t.Errorf("after a restart (-want +listed):\n%s", diff)
	}
	require.NoError(s.t, s.Remove(t.Context(), middle))
	require.NoError(s.t, s.SetDeleting(t.Context(), older, instance.ReasonExpired))
	want = slices.DeleteFunc(want, func(id string) bool { return id == middle })
	if diff := cmp.Diff(want, ids(s.List(group))); diff != "" {
		t.Errorf("after a deletion (-want +listed):\n%s", diff)
	}
	if list := s.List(instance.GroupKey{Tenant: "default", Group: "unknown"}); len(list) != 0 {
		t.Errorf("a group without instances has %v", list)
	}
}

func TestKeys(t *testing.T) {
	s := newShard(t, t.TempDir())
	a, b := instance.GroupKey{Tenant: "acme", Group: "a"}, instance.GroupKey{Tenant: "acme", Group: "b"}
	s.cloud.show(t, vmOf(s.add(), instance.Running))
	s.add()
	deleted := s.add(func(r *instance.Record) { r.Tenant, r.Group = "acme", "b" })
	foreign := newRecord(t)
	foreign.Tenant, foreign.Group = a.Tenant, a.Group
	s.cloud.show(t, vmOf(foreign, instance.Running))
	if diff := cmp.Diff([]instance.GroupKey{a, b, group}, s.Keys()); diff != "" {
		t.Errorf("(-want +found):\n%s", diff)
	}
	require.NoError(s.t, s.Remove(t.Context(), deleted.ID))
	s.cloud.remove(t, foreign.ID)
	if diff := cmp.Diff([]instance.GroupKey{group}, s.Keys()); diff != "" {
		t.Errorf("after deletions (-want +found):\n%s", diff)
	}
}

func TestByIdempotencyKey(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add(onDemand("request-1"))
	other := s.add(onDemand("request-1"), func(r *instance.Record) { r.Tenant = "acme" })
	s.add(onDemand("order-2"))
	s.add()
	check := func(when, tenant, key, want string) {
		t.Helper()
		i, found := s.ByIdempotencyKey(tenant, key)
		if found != (want != "") || i.ID != want {
			t.Errorf("%s: found %q, %t, want %q", when, i.ID, found, want)
		}
	}
	check("at first", group.Tenant, "request-1", record.ID)
	check("of another tenant", "acme", "request-1", other.ID)
	check("unknown", "acme", "order-2", "")
	check("none", group.Tenant, "", "")
	s.restart()
	check("after a restart", group.Tenant, "request-1", record.ID)
	require.NoError(s.t, s.Remove(t.Context(), record.ID))
	check("deleted", group.Tenant, "request-1", record.ID)
	s.restart()
	check("deleted, after a restart", group.Tenant, "request-1", record.ID)
	s.Purge(t.Context(), epoch.Add(1))
	check("purged", group.Tenant, "request-1", "")
	check("another tenant's, not purged", "acme", "request-1", other.ID)
}

func TestDraining(t *testing.T) {
	s := newShard(t, t.TempDir())
	drain := func(edit func(*instance.Record), startedAt time.Time) string {
		record := s.add(edit)
		require.NoError(s.t, s.StartDrain(t.Context(), record.ID, instance.Drain{Reason: instance.ReasonExpired, StartedAt: startedAt, DeleteAt: startedAt.Add(time.Minute)}))
		return record.ID
	}
	s.add()
	second := drain(func(r *instance.Record) { r.Group = "others" }, epoch.Add(time.Second))
	first := drain(func(*instance.Record) {}, epoch)
	drain(func(r *instance.Record) { r.Tenant = "acme" }, epoch)
	deleting := drain(func(*instance.Record) {}, epoch)
	require.NoError(s.t, s.SetDeleting(t.Context(), deleting, instance.ReasonExpired))
	deleted := drain(func(*instance.Record) {}, epoch)
	require.NoError(s.t, s.Remove(t.Context(), deleted))
	if diff := cmp.Diff([]string{first, second}, ids(s.Draining(group.Tenant))); diff != "" {
		t.Errorf("(-want +found):\n%s", diff)
	}
	s.restart()
	if diff := cmp.Diff([]string{first, second}, ids(s.Draining(group.Tenant))); diff != "" {
		t.Errorf("after a restart (-want +found):\n%s", diff)
	}
}

// TestFormer: a provider gets the instances that are not deleted, with their provider ids.
func TestFormer(t *testing.T) {
	s := newShard(t, t.TempDir())
	requested, existed, deleted := s.add(), s.add(), s.add(onDemand("key"))
	for _, record := range []instance.Record{existed, deleted} {
		require.NoError(t, s.SetProviderID(t.Context(), record.ID, "cloud:///"+record.ID))
	}
	require.NoError(t, s.SetDeleting(t.Context(), deleted.ID, instance.ReasonRequested))
	want := []instance.VM{vmOf(requested, instance.Pending), vmOf(existed, instance.Pending), vmOf(deleted, instance.Pending)}
	want[0].ProviderID = ""
	sortByID := cmpopts.SortSlices(func(a, b instance.VM) bool { return a.ID < b.ID })
	if diff := cmp.Diff(want, s.Former(), sortByID); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	require.NoError(t, s.Remove(t.Context(), deleted.ID))
	if diff := cmp.Diff(want[:2], s.Former(), sortByID); diff != "" {
		t.Errorf("after a deletion (-want +got):\n%s", diff)
	}
}
