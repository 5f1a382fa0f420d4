// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/storage"
)

// TestDamagedRecord checks that a damaged record stops nothing, and that its instance is
// adopted if the provider lists it.
func TestDamagedRecord(t *testing.T) {
	good := newRecord(t)
	with := func(edit func(*instance.Record)) string {
		record := good
		edit(&record)
		data, err := json.Marshal(record)
		require.NoError(t, err)
		return string(data)
	}
	tests := []struct{ name, content string }{
		{"empty", ``},
		{"cut off", with(func(*instance.Record) {})[:40]},
		{"null", `null`},
		{"of another shape", `{"instance_id": 1}`},
		{"without an id", with(func(r *instance.Record) { r.ID = "" })},
		{"without a tenant", with(func(r *instance.Record) { r.Tenant = "" })},
		{"without a group", with(func(r *instance.Record) { r.Group = "" })},
		{"without a time", with(func(r *instance.Record) { r.CreatedAt = time.Time{} })},
		{"of another tenant", with(func(r *instance.Record) { r.Tenant = "acme" })},
		{"of another instance", with(func(r *instance.Record) { r.ID = newRecord(t).ID })},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := newShard(t, t.TempDir())
			for range 40 {
				s.add()
			}
			key := keyOf(t, good)
			if _, err := s.storage.Create(t.Context(), key, []byte(tc.content)); err != nil {
				t.Fatal(err)
			}
			s.cloud.show(t, vmOf(good, instance.Running))
			for range 2 {
				s.restart()
				require.Len(t, s.List(group), 40)
				require.Len(t, s.Unrecorded(), 1)
			}
			err := s.Adopt(t.Context())
			require.NoError(t, err)
			require.Len(t, s.List(group), 41)
			s.restart()
			require.Len(t, s.List(group), 41)
			require.Empty(t, s.Unrecorded())
		})
	}
}

// TestDamagedRecordInTheCache checks that the row of the cache replaces a damaged record.
func TestDamagedRecordInTheCache(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	object, err := s.storage.Get(t.Context(), keyOf(t, record))
	require.NoError(t, err)
	_, err = s.storage.Replace(t.Context(), keyOf(t, record), []byte(`{`), object.ETag)
	require.NoError(t, err)
	s.restart()
	require.Equal(t, []string{record.ID}, ids(s.List(group)))
	require.NoError(t, s.SetProviderID(t.Context(), record.ID, "cloud:///1"))
	s.loseCache()
	s.restart()
	require.Equal(t, "cloud:///1", s.want(record.ID).ProviderID)
}

func TestUnreadableRecordIsAnError(t *testing.T) {
	s := newShard(t, t.TempDir())
	for range 40 {
		s.add()
	}
	unreadable := keyOf(t, s.add())
	s.close()
	s.loseCache()
	s.storage.intervene(func(method, key string) error {
		if method == "Get" && key == unreadable {
			return errStorage
		}
		return nil
	}, nil)
	if err := s.tryOpen(instancestore.Options{}); !errors.Is(err, errStorage) || !strings.Contains(err.Error(), unreadable) {
		t.Errorf("got %v, want the storage's error with the key", err)
	}
	s.close()
	s.storage.intervene(func(method, _ string) error {
		if method == "List" {
			return errStorage
		}
		return nil
	}, nil)
	if err := s.tryOpen(instancestore.Options{}); !errors.Is(err, errStorage) {
		t.Errorf("got %v, want the storage's error", err)
	}
}

// TestRecordRemovedDuringStart simulates a removal by the previous leader.
func TestRecordRemovedDuringStart(t *testing.T) {
	s := newShard(t, t.TempDir())
	kept, removed := s.add(), s.add()
	s.close()
	s.loseCache()
	s.storage.intervene(func(method, key string) error {
		if method == "Get" && key == keyOf(t, removed) {
			return s.storage.Store.Delete(t.Context(), key)
		}
		return nil
	}, nil)
	s.open(instancestore.Options{})
	if diff := cmp.Diff([]string{kept.ID}, ids(s.List(group))); diff != "" {
		t.Errorf("(-want +listed):\n%s", diff)
	}
}

// TestStorageOverridesCache checks that records override the rows of the cache.
func TestStorageOverridesCache(t *testing.T) {
	s := newShard(t, t.TempDir())
	changed, dropped, deleting, tombstone, back := s.add(), s.add(), s.add(), s.add(), s.add()
	drain := instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch}
	require.NoError(s.t, s.StartDrain(t.Context(), changed.ID, drain))
	require.NoError(s.t, s.SetDeleting(t.Context(), deleting.ID, instance.ReasonExpired))
	require.NoError(s.t, s.Remove(t.Context(), tombstone.ID))
	require.NoError(s.t, s.Remove(t.Context(), back.ID))
	s.clock.SetTime(epoch.Add(time.Hour))

	// Changes of another server.
	other := newRecord(t)
	changed.ProviderID = "cloud:///1"
	for _, record := range []instance.Record{changed, other, back} {
		data, err := json.Marshal(record)
		require.NoError(s.t, err)
		require.NoError(s.t, s.storage.Delete(t.Context(), keyOf(t, record)))
		_, err = s.storage.Create(t.Context(), keyOf(t, record), data)
		require.NoError(t, err)
	}
	for _, record := range []instance.Record{dropped, deleting} {
		require.NoError(s.t, s.storage.Delete(t.Context(), keyOf(t, record)))
	}
	s.storage.count()
	s.restart()
	if diff := cmp.Diff(map[string]int{"List": 1, "Get": 3}, s.storage.count()); diff != "" {
		t.Errorf("calls of the start (-want +got):\n%s", diff)
	}
	for range 2 {
		want := []instance.Instance{
			{Record: changed, State: instance.Missing, Drain: &drain},
			{Record: back},
			{Record: other},
		}
		if diff := cmp.Diff(want, s.List(group)); diff != "" {
			t.Errorf("(-want +listed):\n%s", diff)
		}
		if i, found := s.Get(dropped.ID); found {
			t.Errorf("without a record: found %+v", i)
		}
		// Its deletion was decided, so it is not adopted if it reappears.
		want[0] = instance.Instance{Record: deleting, State: instance.Missing, DeleteReason: instance.ReasonExpired, DeletedAt: epoch.Add(time.Hour)}
		if diff := cmp.Diff(want[0], s.want(deleting.ID)); diff != "" {
			t.Errorf("deleted and without a record (-want +found):\n%s", diff)
		}
		if at := s.want(tombstone.ID).DeletedAt; !at.Equal(epoch) {
			t.Errorf("deleted earlier: was deleted at %v", at)
		}
		rows, err := s.cache.Rows(t.Context())
		require.NoError(s.t, err)
		if len(rows) != 5 {
			t.Errorf("the cache has %d rows, want 3 instances and 2 tombstones", len(rows))
		}
		// At the second start, the cache has all rows.
		s.clock.SetTime(epoch.Add(2 * time.Hour))
		s.restart()
		if diff := cmp.Diff(map[string]int{"List": 1}, s.storage.count()); diff != "" {
			t.Errorf("calls of the second start (-want +got):\n%s", diff)
		}
	}
}

// TestAnotherServerHasLed checks that drains of an outdated cache are dropped.
func TestAnotherServerHasLed(t *testing.T) {
	s := newShard(t, t.TempDir())
	draining, deleting, deleted := s.add(), s.add(), s.add()
	require.NoError(s.t, s.StartDrain(t.Context(), draining.ID, instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch}))
	require.NoError(s.t, s.SetDeleting(t.Context(), deleting.ID, instance.ReasonExpired))
	require.NoError(s.t, s.Remove(t.Context(), deleted.ID))
	s.close()
	s.storage.count()
	s.open(instancestore.Options{Stale: true})
	if diff := cmp.Diff(map[string]int{"List": 1}, s.storage.count()); diff != "" {
		t.Errorf("calls of the start (-want +got):\n%s", diff)
	}
	want := []instance.Instance{{Record: draining}, {Record: deleting}}
	for range 2 {
		if diff := cmp.Diff(want, s.List(group)); diff != "" {
			t.Errorf("(-want +listed):\n%s", diff)
		}
		if s.want(deleted.ID).DeletedAt.IsZero() {
			t.Error("a tombstone is lost")
		}
		// The old drains do not reappear with the next start.
		s.restart()
	}
}

func TestForeignRowsAndRecordsAreIgnored(t *testing.T) {
	s := newShard(t, t.TempDir())
	foreign := newRecord(t)
	foreign.ID = "nonsense"
	require.NoError(s.t, s.cache.Put(t.Context(), cache.Row{Record: foreign, DeletedAt: epoch}))
	s.restart()
	if i, found := s.Get("nonsense"); found {
		t.Errorf("found %+v", i)
	}
	// Records of another shard have another prefix.
	_, err := s.storage.Create(t.Context(), storage.InstancePrefix(shardID+"2")+"x.json", nil)
	require.NoError(t, err)
	s.restart()
}

// rewrite changes a stored record as a server of a later version does.
func rewrite(t *testing.T, s *shard, key string, change func(record map[string]any)) {
	t.Helper()
	object, err := s.storage.Get(t.Context(), key)
	require.NoError(t, err)
	var record map[string]any
	require.NoError(t, json.Unmarshal(object.Data, &record))
	change(record)
	data, err := json.Marshal(record)
	require.NoError(t, err)
	_, err = s.storage.Replace(t.Context(), key, data, object.ETag)
	require.NoError(t, err)
}

// TestFieldsOfALaterVersionAreKept by changes of the record, and through the cache.
func TestFieldsOfALaterVersionAreKept(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := newRecord(t)
	require.NoError(t, s.Add(t.Context(), record))
	key := keyOf(t, record)
	rewrite(t, s, key, func(record map[string]any) { record["placement"] = map[string]any{"rack": "7"} })
	s.restart()
	require.NoError(t, s.SetProviderID(t.Context(), record.ID, "vm-1"))
	s.restart()
	require.NoError(t, s.RequestDeletion(t.Context(), record.ID))
	rewrite(t, s, key, func(record map[string]any) {
		require.Equal(t, "vm-1", record["provider_id"])
		require.Contains(t, record, "deletion_requested_at")
		require.Equal(t, map[string]any{"rack": "7"}, record["placement"])
		require.NotContains(t, record, "format_version", "servers from before the field would drop it")
	})
}

// TestFormatOfALaterVersion is refused, even if the cache has a row: a record that counts as
// damaged would be replaced.
func TestFormatOfALaterVersion(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := newRecord(t)
	require.NoError(t, s.Add(t.Context(), record))
	key := keyOf(t, record)
	rewrite(t, s, key, func(record map[string]any) { record["format_version"] = 2 })
	before, err := s.storage.Get(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, s.cache.Close())
	err = s.tryOpen(instancestore.Options{})
	require.ErrorContains(t, err, key)
	require.ErrorContains(t, err, "has format version 2, and this server reads versions up to 1")
	after, err := s.storage.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, before, after)
}
