// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/storage"
)

var errStorage = errors.New("the storage does not respond")

func TestAddStoresTheRecord(t *testing.T) {
	s := newShard(t, t.TempDir())
	full := newRecord(t)
	full.OnDemand, full.IdempotencyKey = true, "request-1"
	full.Template, full.InstanceType, full.SubnetPool = "large", "t3.large", "open"
	full.Vars = map[string]string{"a": "<1>"}
	// In the local zone, with a monotonic clock reading.
	full.CreatedAt = time.Now()
	require.NoError(s.t, s.Add(t.Context(), full))
	if diff := cmp.Diff(full, s.stored(full)); diff != "" {
		t.Errorf("(-added +stored):\n%s", diff)
	}
	before := s.want(full.ID)
	if diff := cmp.Diff(full, before.Record); diff != "" {
		t.Errorf("(-added +found):\n%s", diff)
	}
	s.restart()
	after := s.want(full.ID)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("(-before +after a restart):\n%s", diff)
	}
	if before.CreatedAt != after.CreatedAt {
		t.Errorf("the time is %#v before and %#v after a restart", before.CreatedAt, after.CreatedAt)
	}
}

func TestAddRejects(t *testing.T) {
	s := newShard(t, t.TempDir())
	existing, deleted := s.add(), s.add()
	require.NoError(s.t, s.Remove(t.Context(), deleted.ID))
	for name, id := range map[string]string{"in use": existing.ID, "deleted": deleted.ID} {
		record := newRecord(t)
		record.ID = id
		if err := s.Add(t.Context(), record); !errors.Is(err, instancestore.ErrExists) || !strings.Contains(err.Error(), id) {
			t.Errorf("an id that is %s: got %v, want ErrExists with the id", name, err)
		}
	}
	for want, edit := range map[string]func(*instance.Record){
		"is not an instance id": func(r *instance.Record) { r.ID = "nonsense" },
		"tenant":                func(r *instance.Record) { r.Tenant = "a.b" },
		"group":                 func(r *instance.Record) { r.Group = "" },
		"created_at is missing": func(r *instance.Record) { r.CreatedAt = time.Time{} },
	} {
		record := newRecord(t)
		edit(&record)
		if err := s.Add(t.Context(), record); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if keys := s.records(); len(keys) != 1 {
		t.Errorf("stored are %v", keys)
	}
}

// TestStorageErrorChangesNothing checks that nothing changes in memory or in
// the cache.
func TestStorageErrorChangesNothing(t *testing.T) {
	s := newShard(t, t.TempDir())
	record, added := s.add(), newRecord(t)
	before := s.List(group)
	for method, change := range map[string]func() error{
		"Create":  func() error { return s.Add(t.Context(), added) },
		"Replace": func() error { return s.SetProviderID(t.Context(), record.ID, "cloud:///1") },
		"Delete":  func() error { return s.Remove(t.Context(), record.ID) },
	} {
		t.Run(method, func(t *testing.T) {
			s.storage.intervene(func(called, _ string) error {
				if called == method {
					return errStorage
				}
				return nil
			}, nil)
			id := record.ID
			if method == "Create" {
				id = added.ID
			}
			if err := change(); !errors.Is(err, errStorage) || !strings.Contains(err.Error(), id) {
				t.Errorf("got %v, want the storage's error with the id", err)
			}
			s.storage.intervene(nil, nil)
			if diff := cmp.Diff(before, s.List(group)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
			s.restart()
			if diff := cmp.Diff(before, s.List(group)); diff != "" {
				t.Errorf("after a restart (-before +after):\n%s", diff)
			}
		})
	}
}

// TestLostAnswer simulates a storage that carries out a write and reports an
// error.
func TestLostAnswer(t *testing.T) {
	s := newShard(t, t.TempDir())
	record, added := s.add(), newRecord(t)
	for method, change := range map[string]func() error{
		"Create":  func() error { return s.Add(t.Context(), added) },
		"Replace": func() error { return s.SetProviderID(t.Context(), record.ID, "cloud:///1") },
	} {
		s.storage.intervene(nil, func(called, _ string) error {
			if called == method {
				return errStorage
			}
			return nil
		})
		if err := change(); !errors.Is(err, errStorage) {
			t.Errorf("%s: got %v, want the storage's error", method, err)
		}
		s.storage.intervene(nil, nil)
		require.NoError(s.t, change())
	}
	s.want(added.ID)
	if id := s.want(record.ID).ProviderID; id != "cloud:///1" {
		t.Errorf("the provider id is %q", id)
	}
	// The etags are correct: nothing is read again, and the next write
	// succeeds.
	require.NoError(s.t, s.SetProviderID(t.Context(), added.ID, "cloud:///2"))
	s.storage.count()
	s.restart()
	if diff := cmp.Diff(map[string]int{"List": 1}, s.storage.count()); diff != "" {
		t.Errorf("calls of the restart (-want +got):\n%s", diff)
	}
}

// TestAnotherWriter checks that a record that another writer changed is not
// replaced.
func TestAnotherWriter(t *testing.T) {
	s := newShard(t, t.TempDir())
	record, added := s.add(), newRecord(t)
	for _, r := range []instance.Record{record, added} {
		key := keyOf(t, r)
		require.NoError(s.t, s.storage.Store.Delete(t.Context(), key))
		_, err := s.storage.Store.Create(t.Context(), key, []byte(`{}`))
		require.NoError(t, err)
	}
	before := s.List(group)
	outdated := 0
	s.outdated = func(error) { outdated++ }
	if err := s.Add(t.Context(), added); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("Add: got %v, want a conflict", err)
	}
	if err := s.SetProviderID(t.Context(), record.ID, "cloud:///1"); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("SetProviderID: got %v, want a conflict", err)
	}
	require.NoError(s.t, s.storage.Store.Delete(t.Context(), keyOf(t, record)))
	if err := s.SetProviderID(t.Context(), record.ID, "cloud:///1"); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("SetProviderID without a record: got %v, want a conflict", err)
	}
	if outdated != 3 {
		t.Errorf("the store was found outdated %d times, want 3", outdated)
	}
	if diff := cmp.Diff(before, s.List(group)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// TestCacheErrors checks that changes succeed without the cache, which only
// makes the next start faster.
func TestCacheErrors(t *testing.T) {
	s := newShard(t, t.TempDir())
	old := s.add()
	s.close()
	record := s.add()
	require.NoError(s.t, s.SetProviderID(t.Context(), record.ID, "cloud:///1"))
	require.NoError(s.t, s.StartDrain(t.Context(), record.ID, instance.Drain{StartedAt: epoch, DeleteAt: epoch}))
	require.NoError(s.t, s.Acknowledge(t.Context(), record.ID))
	require.NoError(s.t, s.SetDeleting(t.Context(), record.ID, instance.ReasonExpired))
	if i := s.want(record.ID); i.ProviderID == "" || i.Drain == nil || !i.Drain.Acknowledged || i.DeleteReason == "" {
		t.Errorf("a change is lost: %+v", i)
	}
	require.NoError(s.t, s.Remove(t.Context(), old.ID))
	s.Purge(t.Context(), epoch)
	// Open the store over a cache that cannot be read, too.
	options := instancestore.Options{Storage: s.storage, Cache: s.cache, Provider: s.cloud, Shard: shardID, Clock: s.clock}
	opened, err := instancestore.Open(t.Context(), options)
	require.NoError(s.t, err)
	if diff := cmp.Diff([]string{record.ID}, ids(opened.List(group))); diff != "" {
		t.Errorf("(-want +listed):\n%s", diff)
	}
}

// TestUnknown checks that nothing is stored for an instance without a record.
func TestUnknown(t *testing.T) {
	s := newShard(t, t.TempDir())
	deleted := s.add()
	require.NoError(s.t, s.Remove(t.Context(), deleted.ID))
	remembered := s.want(deleted.ID)
	unknown := newRecord(t)
	for name, change := range map[string]func(id string) error{
		"SetProviderID":   func(id string) error { return s.SetProviderID(t.Context(), id, "cloud:///1") },
		"StartDrain":      func(id string) error { return s.StartDrain(t.Context(), id, instance.Drain{StartedAt: epoch}) },
		"Acknowledge":     func(id string) error { return s.Acknowledge(t.Context(), id) },
		"SetDeleting":     func(id string) error { return s.SetDeleting(t.Context(), id, instance.ReasonExpired) },
		"RequestDeletion": func(id string) error { return s.RequestDeletion(t.Context(), id) },
		"Remove":          func(id string) error { return s.Remove(t.Context(), id) },
	} {
		if err := change(unknown.ID); !errors.Is(err, instancestore.ErrUnknown) || !strings.Contains(err.Error(), unknown.ID) {
			t.Errorf("%s: got %v, want ErrUnknown with the id", name, err)
		}
		s.clock.SetTime(s.clock.Now().Add(time.Second))
		if err := change(deleted.ID); err != nil {
			t.Errorf("%s of a deleted instance: %v", name, err)
		}
		if diff := cmp.Diff(remembered, s.want(deleted.ID)); diff != "" {
			t.Errorf("%s has changed a deleted instance (-before +after):\n%s", name, diff)
		}
	}
	s.restart()
	if i, found := s.Get(unknown.ID); found {
		t.Errorf("found %+v", i)
	}
	if keys := s.records(); len(keys) != 0 {
		t.Errorf("stored are %v", keys)
	}
}

func TestProviderIDIsKept(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	require.NoError(s.t, s.SetProviderID(t.Context(), record.ID, "cloud:///1"))
	s.storage.count()
	require.NoError(s.t, s.SetProviderID(t.Context(), record.ID, "cloud:///1"))
	if err := s.SetProviderID(t.Context(), record.ID, "cloud:///2"); err == nil || !strings.Contains(err.Error(), "cloud:///2") {
		t.Errorf("got %v, want an error that names the other id", err)
	}
	if calls := s.storage.count(); len(calls) != 0 {
		t.Errorf("the storage was called: %v", calls)
	}
	record.ProviderID = "cloud:///1"
	// Only the provider id changes; in particular, the hash does not.
	if diff := cmp.Diff(record, s.stored(record)); diff != "" {
		t.Errorf("(-want +stored):\n%s", diff)
	}
}

// TestDrain also checks that drains are never stored.
func TestDrain(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	drain := instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(5 * time.Minute)}
	s.storage.count()
	check := func(when string, want *instance.Drain, deleting string) {
		t.Helper()
		for range 2 {
			i := s.want(record.ID)
			if diff := cmp.Diff(want, i.Drain); diff != "" || i.DeleteReason != deleting {
				t.Errorf("%s: is deleted for %q, want %q; the drain (-want +found):\n%s", when, i.DeleteReason, deleting, diff)
			}
			s.restart()
		}
	}
	require.NoError(s.t, s.StartDrain(t.Context(), record.ID, drain))
	check("started", &drain, "")
	require.NoError(s.t, s.StartDrain(t.Context(), record.ID, instance.Drain{Reason: instance.ReasonUnhealthy, StartedAt: epoch.Add(1)}))
	check("started again", &drain, "")
	require.NoError(s.t, s.Acknowledge(t.Context(), record.ID))
	drain.Acknowledged = true
	check("acknowledged", &drain, "")
	require.NoError(s.t, s.Acknowledge(t.Context(), record.ID))
	check("acknowledged again", &drain, "")
	require.NoError(s.t, s.SetDeleting(t.Context(), record.ID, instance.ReasonExpired))
	check("deleting", &drain, instance.ReasonExpired)
	require.NoError(s.t, s.SetDeleting(t.Context(), record.ID, instance.ReasonRequested))
	check("deleting again", &drain, instance.ReasonExpired)
	calls := s.storage.count()
	if delete(calls, "List"); len(calls) != 0 {
		t.Errorf("the storage was called: %v", calls)
	}
}

func TestAcknowledgementWithoutADrain(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	require.NoError(s.t, s.Acknowledge(t.Context(), record.ID))
	want := &instance.Drain{Reason: instance.ReasonUnhealthy, StartedAt: epoch, DeleteAt: epoch, Acknowledged: true}
	if diff := cmp.Diff(want, s.want(record.ID).Drain); diff != "" {
		t.Errorf("(-want +found):\n%s", diff)
	}
}

func TestDeletedInstanceIsKeptUntilPurged(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	require.NoError(s.t, s.SetProviderID(t.Context(), record.ID, "cloud:///1"))
	require.NoError(s.t, s.SetDeleting(t.Context(), record.ID, instance.ReasonScaleDown))
	s.clock.SetTime(epoch.Add(time.Hour))
	require.NoError(s.t, s.Remove(t.Context(), record.ID))
	record.ProviderID = "cloud:///1"
	want := instance.Instance{Record: record, State: instance.Missing, DeleteReason: instance.ReasonScaleDown, DeletedAt: epoch.Add(time.Hour)}
	for range 2 {
		s.Purge(t.Context(), epoch.Add(time.Hour))
		if diff := cmp.Diff(want, s.want(record.ID)); diff != "" {
			t.Errorf("(-want +found):\n%s", diff)
		}
		if list := s.List(group); len(list) != 0 {
			t.Errorf("is still listed: %v", list)
		}
		s.restart()
	}
	if keys := s.records(); len(keys) != 0 {
		t.Errorf("stored are %v", keys)
	}
	s.Purge(t.Context(), epoch.Add(time.Hour+1))
	for range 2 {
		if i, found := s.Get(record.ID); found {
			t.Errorf("was not purged: %+v", i)
		}
		s.restart()
	}
}

var errLost = errors.New("the answer was lost")

// registration returns the registration of a key.
func registration(key string, serial string) instance.Registration {
	at := epoch.Add(time.Hour)
	if serial == "2" {
		at = at.Add(time.Hour)
	}
	return instance.Registration{PublicKeyPEM: key, CertSerial: serial, ExpiresAt: at, RegisteredAt: epoch}
}

// register registers an instance with a key unless it is registered with another key.
func (s *shard) register(id, key, serial string) error {
	return s.Register(s.t.Context(), id, func(present *instance.Registration) (instance.Registration, error) {
		if present != nil && present.PublicKeyPEM != key {
			return instance.Registration{}, instancestore.ErrOtherKey
		}
		return registration(key, serial), nil
	})
}

// loseAnswers makes all writes return an error after they were done, until it is called
// again.
func (s *shard) loseAnswers(lose bool) {
	if !lose {
		s.storage.intervene(nil, nil)
		return
	}
	s.storage.intervene(nil, func(method, _ string) error {
		if method == "Replace" {
			return errLost
		}
		return nil
	})
}

func TestARegistrationIsStored(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	require.NoError(t, s.register(record.ID, "key", "1"))
	want := registration("key", "1")
	assert.Equal(t, &want, s.want(record.ID).Registration)
	assert.Equal(t, &want, s.stored(record).Registration)
	assert.ErrorIs(t, s.register(record.ID, "other", "1"), instancestore.ErrOtherKey)
	// Other changes keep it.
	require.NoError(t, s.SetProviderID(t.Context(), record.ID, "p"))
	require.NoError(t, s.RequestDeletion(t.Context(), record.ID))
	assert.Equal(t, &want, s.stored(record).Registration)
	s.restart()
	assert.Equal(t, &want, s.want(record.ID).Registration)
	s.close()
	s.loseCache()
	s.open(instancestore.Options{})
	assert.Equal(t, &want, s.want(record.ID).Registration, "without the cache")
	require.NoError(t, s.Remove(t.Context(), record.ID))
	assert.ErrorIs(t, s.register(record.ID, "key", "1"), instancestore.ErrUnknown)
	assert.ErrorIs(t, s.register("unknown", "key", "1"), instancestore.ErrUnknown)
}

// TestARegistrationWhoseAnswerWasLost binds the instance to its key, also if the agent never
// calls again.
func TestARegistrationWhoseAnswerWasLost(t *testing.T) {
	want := registration("key", "1")
	for name, next := range map[string]func(*shard, string){
		"another key": func(s *shard, id string) {
			assert.ErrorIs(t, s.register(id, "other", "2"), instancestore.ErrOtherKey)
		},
		"the provider id": func(s *shard, id string) {
			require.NoError(t, s.SetProviderID(t.Context(), id, "p"))
		},
		"another server": func(s *shard, _ string) { s.restart() },
		"a deletion request": func(s *shard, id string) {
			require.NoError(t, s.RequestDeletion(t.Context(), id))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShard(t, t.TempDir())
			record := s.add()
			s.loseAnswers(true)
			require.ErrorIs(t, s.register(record.ID, "key", "1"), errLost)
			s.loseAnswers(false)
			next(s, record.ID)
			assert.Equal(t, &want, s.stored(record).Registration)
			assert.Equal(t, &want, s.want(record.ID).Registration)
			require.ErrorIs(t, s.register(record.ID, "other", "2"), instancestore.ErrOtherKey)
			require.NoError(t, s.register(record.ID, "key", "2"))
			assert.Equal(t, "2", s.stored(record).Registration.CertSerial)
		})
	}
	t.Run("the same key", func(t *testing.T) {
		s := newShard(t, t.TempDir())
		record := s.add()
		s.loseAnswers(true)
		require.ErrorIs(t, s.register(record.ID, "key", "1"), errLost)
		s.loseAnswers(false)
		require.NoError(t, s.register(record.ID, "key", "2"))
		assert.Equal(t, "2", s.stored(record).Registration.CertSerial)
	})
}

// TestDeletionRequestIsDurable checks that every later server knows the request, with an
// intact, a lost or a damaged cache.
func TestDeletionRequestIsDurable(t *testing.T) {
	drain := instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(time.Hour)}
	decided := map[string]func(s *shard, id string){
		"running":  func(*shard, string) {},
		"draining": func(s *shard, id string) { require.NoError(s.t, s.StartDrain(t.Context(), id, drain)) },
		"deleting": func(s *shard, id string) {
			require.NoError(s.t, s.SetDeleting(t.Context(), id, instance.ReasonExpired))
		},
	}
	starts := map[string]func(*shard){
		"restart": (*shard).restart,
		"lost cache": func(s *shard) {
			s.close()
			s.loseCache()
			s.open(instancestore.Options{})
		},
		"takeover": func(s *shard) {
			s.close()
			s.open(instancestore.Options{Stale: true})
		},
	}
	for before, decide := range decided {
		for start, begin := range starts {
			t.Run(before+", "+start, func(t *testing.T) {
				s := newShard(t, t.TempDir())
				record := s.add(onDemand("request"))
				s.cloud.show(t, vmOf(record, instance.Running))
				decide(s, record.ID)
				reason := s.want(record.ID).DeleteReason
				if reason == "" {
					reason = instance.ReasonRequested
				}
				s.storage.count()
				for range 2 {
					require.NoError(s.t, s.RequestDeletion(t.Context(), record.ID))
					s.clock.SetTime(s.clock.Now().Add(time.Minute))
				}
				if diff := cmp.Diff(map[string]int{"Replace": 1}, s.storage.count()); diff != "" {
					t.Errorf("calls of two requests (-want +got):\n%s", diff)
				}
				record.DeletionRequestedAt = epoch
				if diff := cmp.Diff(record, s.stored(record)); diff != "" {
					t.Errorf("(-want +stored):\n%s", diff)
				}
				if i := s.want(record.ID); i.DeleteReason != reason {
					t.Errorf("got %+v, want the reason %s", i, reason)
				}
				begin(s)
				if start != "restart" {
					// The other reason was only in the cache.
					reason = instance.ReasonRequested
				}
				// The following start finds it in the cache.
				for range 2 {
					if i := s.want(record.ID); i.DeleteReason != reason || !i.DeletionRequestedAt.Equal(epoch) {
						t.Errorf("got %+v, want the reason %s", i, reason)
					}
					s.restart()
				}
			})
		}
	}
}

// TestDeletionRequestSurvivesACrash simulates a crash after the record was
// written and before the row was.
func TestDeletionRequestSurvivesACrash(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	s.close() // No later write reaches the cache.
	require.NoError(s.t, s.RequestDeletion(t.Context(), record.ID))
	s.open(instancestore.Options{})
	if i := s.want(record.ID); i.DeleteReason != instance.ReasonRequested {
		t.Errorf("got %+v", i)
	}
}

// TestFailedDeletionRequest checks that a request that is not stored returns an
// error and has no effect.
func TestFailedDeletionRequest(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	s.storage.intervene(func(method, _ string) error {
		if method == "Replace" {
			return errStorage
		}
		return nil
	}, nil)
	if err := s.RequestDeletion(t.Context(), record.ID); !errors.Is(err, errStorage) || !strings.Contains(err.Error(), record.ID) {
		t.Errorf("got %v, want the storage's error with the id", err)
	}
	if i := s.want(record.ID); i.BeingDeleted() || !i.DeletionRequestedAt.IsZero() {
		t.Errorf("got %+v", i)
	}
}

// TestChangeAfterALostAnswer makes another change, or the same change at another time, over a
// record whose write seemed to fail.
func TestChangeAfterALostAnswer(t *testing.T) {
	request := func(s *shard, id string) error { return s.RequestDeletion(t.Context(), id) }
	confirm := func(s *shard, id string) error { return s.SetProviderID(t.Context(), id, "cloud:///1") }
	for name, changes := range map[string][2]func(*shard, string) error{
		"the request again":              {request, request},
		"the request, the provider's id": {request, confirm},
		"the provider's id, the request": {confirm, request},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShard(t, t.TempDir())
			record := s.add()
			s.storage.intervene(nil, func(string, string) error { return errStorage })
			if err := changes[0](s, record.ID); !errors.Is(err, errStorage) {
				t.Errorf("got %v, want the storage's error", err)
			}
			s.storage.intervene(nil, nil)
			s.clock.SetTime(epoch.Add(time.Minute))
			require.NoError(s.t, changes[1](s, record.ID))
			require.NoError(s.t, confirm(s, record.ID))
			found := s.want(record.ID)
			if found.DeleteReason != instance.ReasonRequested || found.ProviderID != "cloud:///1" {
				t.Errorf("got %+v", found)
			}
			if diff := cmp.Diff(found.Record, s.stored(record)); diff != "" {
				t.Errorf("(-found +stored):\n%s", diff)
			}
		})
	}
}

// TestDifferentProviderID checks that a stored provider id is not replaced.
func TestDifferentProviderID(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	s.storage.intervene(nil, func(string, string) error { return errStorage })
	if err := s.SetProviderID(t.Context(), record.ID, "cloud:///1"); !errors.Is(err, errStorage) {
		t.Errorf("got %v, want the storage's error", err)
	}
	s.storage.intervene(nil, nil)
	if err := s.SetProviderID(t.Context(), record.ID, "cloud:///2"); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	if id := s.stored(record).ProviderID; id != "cloud:///1" {
		t.Errorf("stored is %s", id)
	}
}
