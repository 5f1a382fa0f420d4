// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
)

// TestReadsDoNotWaitForStorage blocks the storage during every kind of write.
func TestReadsDoNotWaitForStorage(t *testing.T) {
	s := newShard(t, t.TempDir())
	record, added := s.add(), newRecord(t)
	expectReadsDuring(t, s, "Create", func() error { return s.Add(t.Context(), added) })
	expectReadsDuring(t, s, "Replace", func() error { return s.SetProviderID(t.Context(), record.ID, "cloud:///1") })
	expectReadsDuring(t, s, "Delete", func() error { return s.Remove(t.Context(), added.ID) })
}

// expectReadsDuring makes a change that blocks in the storage, reads, and unblocks
// the change.
func expectReadsDuring(t *testing.T, s *shard, method string, change func() error) {
	t.Helper()
	before := s.List(group)
	reached, proceed := make(chan struct{}), make(chan struct{})
	s.storage.intervene(nil, func(called, _ string) error {
		if called == method {
			close(reached)
			<-proceed
		}
		return nil
	})
	var changing sync.WaitGroup
	changing.Go(func() {
		assert.NoError(t, change())
	})
	<-reached
	assert.Empty(t, cmp.Diff(before, s.List(group)), "%s: is visible before it is stored (-before +during)", method)
	for _, i := range before {
		s.want(i.ID)
	}
	s.Keys()
	s.Draining(group.Tenant)
	s.ByIdempotencyKey(group.Tenant, "")
	close(proceed)
	changing.Wait()
	s.storage.intervene(nil, nil)
	if cmp.Equal(before, s.List(group)) {
		t.Errorf("%s: has changed nothing", method)
	}
}

// TestChangesOfOneInstanceAreSerialized checks that no two writes are based on the
// same etag.
func TestChangesOfOneInstanceAreSerialized(t *testing.T) {
	s := newShard(t, t.TempDir())
	var mu sync.Mutex
	writing := map[string]bool{}
	s.storage.intervene(func(method, key string) error {
		mu.Lock()
		defer mu.Unlock()
		if writing[key] {
			t.Errorf("%s %s during another write of the same key", method, key)
		}
		writing[key] = true
		return nil
	}, func(_, key string) error {
		mu.Lock()
		defer mu.Unlock()
		delete(writing, key)
		return nil
	})
	var changing sync.WaitGroup
	for range 4 {
		record := newRecord(t)
		require.NoError(s.t, s.Add(t.Context(), record))
		for i := range 6 {
			changing.Go(func() {
				var err error
				switch i {
				case 0, 1:
					err = s.SetProviderID(t.Context(), record.ID, "cloud:///1")
				case 2:
					err = s.StartDrain(t.Context(), record.ID, instance.Drain{StartedAt: epoch, DeleteAt: epoch})
				case 3:
					err = s.Acknowledge(t.Context(), record.ID)
				case 4:
					err = s.SetDeleting(t.Context(), record.ID, instance.ReasonRequested)
				case 5:
					s.List(group)
					s.Draining(group.Tenant)
					s.want(record.ID)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	changing.Wait()
	list := s.List(group)
	for _, i := range list {
		if i.ProviderID != "cloud:///1" || i.Drain == nil || !i.Drain.Acknowledged || i.DeleteReason != instance.ReasonRequested {
			t.Errorf("a change is lost: %+v", i)
		}
		changing.Go(func() { require.NoError(s.t, s.Remove(t.Context(), i.ID)) })
		changing.Go(func() { require.NoError(s.t, s.Remove(t.Context(), i.ID)) })
	}
	changing.Wait()
	if records, list := s.records(), s.List(group); len(records)+len(list) != 0 {
		t.Errorf("there are still the records %v and the instances %v", records, list)
	}
}

// TestConcurrentAdds checks that only one of several callers succeeds, although
// they add the same record.
func TestConcurrentAdds(t *testing.T) {
	s := newShard(t, t.TempDir())
	for range 20 {
		record := newRecord(t)
		var adding sync.WaitGroup
		var rejected atomic.Int32
		for range 4 {
			adding.Go(func() {
				err := s.Add(t.Context(), record)
				if errors.Is(err, instancestore.ErrExists) {
					rejected.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		adding.Wait()
		if n := rejected.Load(); n != 3 {
			t.Fatalf("%d of 4 were rejected, want 3", n)
		}
	}
}

// TestListDuringChanges lists a group while it changes.
func TestListDuringChanges(t *testing.T) {
	s := newShard(t, t.TempDir())
	var stay []string
	for range 20 {
		stay = append(stay, s.add().ID)
	}
	var changing sync.WaitGroup
	for n := range 4 {
		changing.Go(func() {
			for range 10 {
				// Older and younger than the others.
				record := newRecord(t)
				record.CreatedAt = epoch.Add(time.Duration(n-2) * time.Hour)
				err := errors.Join(
					s.Add(t.Context(), record),
					s.SetDeleting(t.Context(), record.ID, instance.ReasonExpired),
					s.Remove(t.Context(), record.ID))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	changed := make(chan struct{})
	go func() {
		changing.Wait()
		close(changed)
	}()
	for done := false; !done; {
		select {
		case <-changed:
			done = true
		default:
		}
		list := s.List(group)
		if !slices.IsSortedFunc(list, func(a, b instance.Instance) int { return a.CreatedAt.Compare(b.CreatedAt) }) {
			t.Fatalf("%v are not in order", ids(list))
		}
		found := slices.DeleteFunc(ids(list), func(id string) bool { return !slices.Contains(stay, id) })
		if diff := cmp.Diff(stay, found); diff != "" {
			t.Fatalf("those that stay (-want +listed):\n%s", diff)
		}
	}
}
