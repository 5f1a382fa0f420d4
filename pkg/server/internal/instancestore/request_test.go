// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/storage"
)

// TestDeletionRequestIsDurable checks that every later server knows about the
// request, whatever is left of the cache.
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

// TestChangeAfterALostAnswer makes another change, or the same one at another
// time, over a record whose write seemed to fail.
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
