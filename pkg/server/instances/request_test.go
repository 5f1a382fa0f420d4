// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instances_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
	"nstance.dev/operator/pkg/server/storage"
)

// TestARequestToDeleteIsDurable: whoever opens the shard, with whatever is left of
// the cache, finds that the instance is to go.
func TestARequestToDeleteIsDurable(t *testing.T) {
	drain := instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(time.Hour)}
	decided := map[string]func(s *shard, id string){
		"running":  func(*shard, string) {},
		"draining": func(s *shard, id string) { s.must(s.StartDrain(t.Context(), id, drain)) },
		"ending":   func(s *shard, id string) { s.must(s.SetDeleting(t.Context(), id, instance.ReasonExpired)) },
	}
	starts := map[string]func(*shard){
		"restart": (*shard).restart,
		"lost cache": func(s *shard) {
			s.close()
			s.loseCache()
			s.open(instances.Options{})
		},
		"takeover": func(s *shard) {
			s.close()
			s.open(instances.Options{Stale: true})
		},
	}
	for before, decide := range decided {
		for start, begin := range starts {
			t.Run(before+", "+start, func(t *testing.T) {
				s := newShard(t, t.TempDir())
				record := s.add(onDemand("order"))
				s.cloud.show(t, vmOf(record, instance.Running))
				decide(s, record.ID)
				reason := s.want(record.ID).DeleteReason
				if reason == "" {
					reason = instance.ReasonRequested
				}
				s.storage.count()
				for range 2 {
					s.must(s.RequestDeletion(t.Context(), record.ID))
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
					t.Errorf("it is left as %+v, want it to end as %s", i, reason)
				}
				begin(s)
				if start != "restart" {
					// The other reason was in the cache only.
					reason = instance.ReasonRequested
				}
				// And the start after that finds it in the cache.
				for range 2 {
					if i := s.want(record.ID); i.DeleteReason != reason || !i.DeletionRequestedAt.Equal(epoch) {
						t.Errorf("it is left as %+v, want it to end as %s", i, reason)
					}
					s.restart()
				}
			})
		}
	}
}

// TestARequestToDeleteOutlivesACrash between the record and the row.
func TestARequestToDeleteOutlivesACrash(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	s.close() // Nothing reaches the cache any more.
	s.must(s.RequestDeletion(t.Context(), record.ID))
	s.open(instances.Options{})
	if i := s.want(record.ID); i.DeleteReason != instance.ReasonRequested {
		t.Errorf("it is left as %+v", i)
	}
}

// TestARequestThatIsNotStored is not acknowledged, and has no effect.
func TestARequestThatIsNotStored(t *testing.T) {
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
	if i := s.want(record.ID); i.Leaving() || !i.DeletionRequestedAt.IsZero() {
		t.Errorf("it is left as %+v", i)
	}
}

// TestAChangeAfterALostAnswer: what comes next is another change, or the same one
// at another time, and finds a record that nobody in the process knows of.
func TestAChangeAfterALostAnswer(t *testing.T) {
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
			s.must(changes[1](s, record.ID))
			s.must(confirm(s, record.ID))
			found := s.want(record.ID)
			if found.DeleteReason != instance.ReasonRequested || found.ProviderID != "cloud:///1" {
				t.Errorf("it is left as %+v", found)
			}
			if diff := cmp.Diff(found.Record, s.stored(record)); diff != "" {
				t.Errorf("(-found +stored):\n%s", diff)
			}
		})
	}
}

// TestAnotherProviderIDIsThere: what can be set once is not replaced either.
func TestAnotherProviderIDIsThere(t *testing.T) {
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
