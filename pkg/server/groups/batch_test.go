// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// gatedStore is a storage whose writes wait: each sends its context to begun, and receives
// its error from results.
type gatedStore struct {
	storagetest.Intercepted
	begun   chan context.Context
	results chan error
}

func (s *gatedStore) call(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
	if call.IsWrite() {
		s.begun <- ctx
		if err := <-s.results; err != nil {
			return err
		}
	}
	return do(ctx)
}

// batchTest has a Store with a write in progress, so that the changes of call
// are stored by the next write.
type batchTest struct {
	t     *testing.T
	store *gatedStore
	*Store
	calls  sync.WaitGroup
	queued int
}

func newBatchTest(t *testing.T) *batchTest {
	t.Helper()
	store := &gatedStore{begun: make(chan context.Context), results: make(chan error)}
	store.Intercepted = storagetest.Intercepted{Store: newStorage(t), Intercept: store.call}
	b := &batchTest{t: t, store: store, Store: open(t, store)}
	b.calls.Go(func() {
		if _, _, err := b.Upsert(t.Context(), plain, Change{Size: 1}); err != nil {
			t.Error(err)
		}
	})
	<-store.begun
	return b
}

// call calls change in a goroutine and returns when its request waits for the
// next write.
func (b *batchTest) call(change func()) {
	b.t.Helper()
	b.calls.Go(change)
	b.queued++
	err := wait.PollUntilContextTimeout(b.t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		b.batchMu.Lock()
		defer b.batchMu.Unlock()
		return b.batch != nil && len(b.batch.requests) == b.queued, nil
	})
	require.NoError(b.t, err, "waiting for request %d", b.queued)
}

// next ends the write in progress, and returns the context of the next write.
func (b *batchTest) next() context.Context {
	b.store.results <- nil
	return <-b.store.begun
}

// finish ends the last write with err and waits for all calls.
func (b *batchTest) finish(err error) {
	b.store.results <- err
	b.calls.Wait()
}

// wantStored checks that memory and storage agree.
func (b *batchTest) wantStored() {
	b.t.Helper()
	assert.Empty(b.t, cmp.Diff(snapshot(b.t, b.Store), snapshot(b.t, open(b.t, b.store.Store))), "(-memory +storage)")
}

func keyOf(n int) instance.GroupKey {
	return instance.GroupKey{Tenant: "default", Group: fmt.Sprintf("group-%d", n)}
}

// newGroup is a valid change for a new group.
var newGroup = Change{Settings: Settings{Template: "worker"}, Size: 2}

// TestConcurrentChangesShareAWrite checks that one write stores the changes of
// all callers that wait, and that each has its own result.
func TestConcurrentChangesShareAWrite(t *testing.T) {
	const callers = 8
	b := newBatchTest(t)
	for n := range callers {
		b.call(func() {
			group, changed, err := b.Upsert(t.Context(), keyOf(n), newGroup)
			if err != nil || !changed || group.Key != keyOf(n) || group.Size != newGroup.Size {
				t.Errorf("group %d: got %+v, changed %t, error %v", n, group, changed, err)
			}
		})
	}
	b.call(func() {
		_, _, err := b.Upsert(t.Context(), keyOf(callers), Change{Settings: Settings{Template: "missing"}})
		if _, invalid := errors.AsType[*InvalidError](err); !invalid {
			t.Errorf("got error %v for an invalid change", err)
		}
	})
	b.call(func() {
		_, _, err := b.Upsert(t.Context(), main, Change{Settings: Settings{Template: "other"}})
		if err == nil {
			t.Error("got no error for a restricted change")
		}
	})
	canceled, cancel := context.WithCancel(t.Context())
	b.call(func() {
		if _, _, err := b.Upsert(canceled, keyOf(callers), newGroup); !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want that of the context", err)
		}
	})
	cancel()
	b.call(func() {
		if changed, err := b.Delete(t.Context(), keyOf(0), nil); !changed || err != nil {
			t.Errorf("Delete returns changed %t, error %v", changed, err)
		}
	})
	b.next()
	if _, found := b.Get(keyOf(1)); found {
		t.Error("a change is visible before it is stored")
	}
	b.finish(nil) // blocks forever if there is a third write
	if _, found := b.Get(keyOf(0)); found {
		t.Error("the group deleted by the last request exists")
	}
	if _, found := b.Get(keyOf(callers)); found {
		t.Error("the group of a caller that gave up exists")
	}
	for n := range callers - 1 {
		get(t, b.Store, keyOf(n+1))
	}
	b.wantStored()
}

// Each of eight callers sends its next change when it has the result of the last. All of them share each
// write, and a caller that stops delays the others by a moment only.
func TestCallersThatChangeInTurnShareEachWrite(t *testing.T) {
	const callers, each = 8, 50
	b := newBatchTest(t)
	// The caller of the write in progress makes no other change.
	b.gatherTime = time.Millisecond
	for n := range callers {
		b.call(func() {
			for i := range each {
				_, changed, err := b.Upsert(t.Context(), keyOf(n), Change{Settings: Settings{Template: "worker"}, Size: int32(i + 1)})
				assert.True(t, changed)
				assert.NoError(t, err)
			}
		})
	}
	b.store.results <- nil
	for range each {
		<-b.store.begun
		b.gatherTime = time.Hour
		b.store.results <- nil
	}
	b.calls.Wait() // blocks forever if there is another write
	assert.Equal(t, callers, b.expected)
	b.wantStored()
}

// A single caller waits for nobody, however many there were before.
func TestACallerThatIsAloneDoesNotWait(t *testing.T) {
	s := open(t, newStorage(t))
	s.gatherTime = time.Hour
	for size := range int32(3) {
		_, _, err := s.Upsert(t.Context(), plain, Change{Size: size + 1})
		require.NoError(t, err)
	}
	s.expected, s.gatherTime = 8, time.Nanosecond
	for size := range int32(3) {
		_, _, err := s.Upsert(t.Context(), plain, Change{Size: size + 4})
		require.NoError(t, err)
		s.gatherTime = time.Hour
	}
}

// TestFailedWriteFailsItsChanges checks that a failed write fails exactly the changes that
// depend on it.
func TestFailedWriteFailsItsChanges(t *testing.T) {
	failure := errors.New("disk full")
	b := newBatchTest(t)
	wantFailure := func(key instance.GroupKey, change Change) {
		b.call(func() {
			group, changed, err := b.Upsert(t.Context(), key, change)
			if group != nil || changed || !errors.Is(err, failure) {
				t.Errorf("group %s: got %+v, changed %t, error %v, want %v", key, group, changed, err, failure)
			}
		})
	}
	wantFailure(keyOf(0), newGroup)
	wantFailure(keyOf(1), newGroup)
	wantFailure(keyOf(0), newGroup) // stored by the first request only
	// Invalid only for the group that the first request creates.
	wantFailure(keyOf(0), Change{Settings: Settings{Template: "missing"}})
	b.call(func() {
		if _, changed, err := b.Upsert(t.Context(), plain, Change{Size: 1}); changed || err != nil {
			t.Errorf("a change that was stored before returns changed %t, error %v", changed, err)
		}
	})
	b.call(func() {
		_, _, err := b.Upsert(t.Context(), keyOf(2), Change{})
		if _, invalid := errors.AsType[*InvalidError](err); !invalid {
			t.Errorf("got error %v for an invalid change", err)
		}
	})
	b.next()
	before := snapshot(t, b.Store)
	b.finish(failure)
	if diff := cmp.Diff(before, snapshot(t, b.Store)); diff != "" {
		t.Errorf("memory has changed (-before +after):\n%s", diff)
	}

	// The changes are written again.
	b.calls.Go(func() { upsert(t, b.Store, keyOf(0), newGroup) })
	<-b.store.begun
	b.finish(nil)
	b.wantStored()
}

// TestCanceledCallers checks that a caller that gives up does not fail the
// changes of others, and that a write stops when all of its callers give up.
func TestCanceledCallers(t *testing.T) {
	b := newBatchTest(t)
	early, cancelEarly := context.WithCancel(t.Context())
	b.call(func() {
		if _, _, err := b.Upsert(early, keyOf(0), newGroup); !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want that of the context", err)
		}
	})
	var cancels []context.CancelFunc
	for n := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		cancels = append(cancels, cancel)
		b.call(func() {
			if _, _, err := b.Upsert(ctx, keyOf(n+1), newGroup); !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want that of the context", err)
			}
		})
	}
	cancelEarly()
	write := b.next()
	cancels[0]()
	// The function that a context runs when it is done runs later.
	if err := write.Err(); err != nil {
		t.Errorf("a caller that gave up has stopped the write: %v", err)
	}
	cancels[1]()
	<-write.Done()
	b.finish(write.Err())
	if _, found := b.Get(keyOf(0)); found {
		t.Error("the change of a caller that gave up before the write is visible")
	}
}

var errLost = errors.New("connection lost")

// TestAnotherServerWrites lets two servers assume that they lead. Every write of the server
// that did not write last gets a conflict.
func TestAnotherServerWrites(t *testing.T) {
	changes := map[string]func(context.Context, *Store) error{
		"upsert of a new group": func(ctx context.Context, s *Store) error {
			_, _, err := s.Upsert(ctx, instance.GroupKey{Tenant: "default", Group: "new"}, Change{Settings: Settings{Template: "worker"}})
			return err
		},
		"upsert of a static group": func(ctx context.Context, s *Store) error {
			_, _, err := s.Upsert(ctx, plain, Change{Size: 9})
			return err
		},
		"delete": func(ctx context.Context, s *Store) error {
			_, err := s.Delete(ctx, main, nil)
			return err
		},
		"another configuration": func(ctx context.Context, s *Store) error {
			return s.Reconfigure(ctx, newConfigWith(nil))
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			store := newStorage(t)
			upsert(t, open(t, store), main, Change{Size: 4})
			wantConflict(t, store, change)
		})
	}
	t.Run("before there is an object", func(t *testing.T) {
		wantConflict(t, newStorage(t), changes["upsert of a new group"])
	})
}

// wantConflict opens the groups twice. It expects that change fails with the first store
// after the second store has written, even if it is repeated, and that it changes nothing.
func wantConflict(t *testing.T, store storage.Store, change func(context.Context, *Store) error) {
	t.Helper()
	old, next := open(t, store), open(t, store)
	upsert(t, next, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 7})
	inForce, before, object := old.Config(), snapshot(t, old), readObject(t, store)
	for range 2 {
		if err := change(t.Context(), old); !errors.Is(err, storage.ErrConflict) {
			t.Errorf("got error %v, want a conflict", err)
		}
	}
	wantNothingChanged(t, old, inForce, store, object)
	assert.Empty(t, cmp.Diff(before, snapshot(t, old)), "memory has changed (-before +after)")
	// The last writer continues.
	upsert(t, next, dynamic, Change{Size: 8})
}

// TestUnconfirmedWrite loses the answer to a write that was or was not carried
// out. The next change is neither rejected nor wrongly assumed to be stored,
// and acknowledged changes are not lost.
func TestUnconfirmedWrite(t *testing.T) {
	second := instance.GroupKey{Tenant: "default", Group: "second"}
	type result struct {
		changed bool
		err     error
	}
	upsertOf := func(key instance.GroupKey, change Change) func(*testing.T, *Store) result {
		return func(t *testing.T, s *Store) result {
			_, changed, err := s.Upsert(t.Context(), key, change)
			return result{changed, err}
		}
	}
	deleteOf := func(key instance.GroupKey) func(*testing.T, *Store) result {
		return func(t *testing.T, s *Store) result {
			changed, err := s.Delete(t.Context(), key, nil)
			return result{changed, err}
		}
	}
	tests := []struct {
		name       string
		lost, next func(*testing.T, *Store) result
		// changed is the result of next.
		changed bool
		// sizes are the sizes of the dynamic groups afterwards.
		sizes map[instance.GroupKey]int32
	}{
		{"the same again", upsertOf(dynamic, Change{Size: 2}), upsertOf(dynamic, Change{Size: 2}), true, map[instance.GroupKey]int32{dynamic: 2}},
		{"what it was before", upsertOf(dynamic, Change{Size: 2}), upsertOf(dynamic, Change{Size: 1}), false, map[instance.GroupKey]int32{dynamic: 1}},
		{"something else", upsertOf(dynamic, Change{Size: 2}), upsertOf(dynamic, Change{Size: 3}), true, map[instance.GroupKey]int32{dynamic: 3}},
		{"another group", upsertOf(dynamic, Change{Size: 2}), upsertOf(second, Change{Settings: Settings{Template: "worker"}, Size: 5}), true, map[instance.GroupKey]int32{dynamic: 1, second: 5}},
		{"the deletion", upsertOf(dynamic, Change{Size: 2}), deleteOf(dynamic), true, map[instance.GroupKey]int32{}},
		{"a group that was never acknowledged is deleted", upsertOf(second, Change{Settings: Settings{Template: "worker"}}), deleteOf(second), true, map[instance.GroupKey]int32{dynamic: 1}},
		{"the deletion again", deleteOf(dynamic), deleteOf(dynamic), true, map[instance.GroupKey]int32{}},
		{"a deleted group as it was", deleteOf(dynamic), upsertOf(dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1}), false, map[instance.GroupKey]int32{dynamic: 1}},
	}
	for _, tc := range tests {
		for when, lose := range map[string]func(*faultyStore){
			"not done": func(s *faultyStore) { s.before = []error{errLost, errLost} },
			"done":     func(s *faultyStore) { s.after = []error{errLost, errLost} },
		} {
			t.Run(tc.name+", "+when, func(t *testing.T) {
				store := newFaultyStore(t)
				s := open(t, store)
				upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
				before := snapshot(t, s)
				lose(store)
				// The write is tried twice, because the next write may fail in the same way.
				for range 2 {
					if got := tc.lost(t, s); got.changed || !errors.Is(got.err, errLost) {
						t.Fatalf("got %+v, want the storage's error", got)
					}
				}
				if diff := cmp.Diff(before, snapshot(t, s)); diff != "" {
					t.Errorf("memory has changed (-before +after):\n%s", diff)
				}
				if got := tc.next(t, s); got != (result{changed: tc.changed}) {
					t.Errorf("the next change returns %+v", got)
				}
				after := map[instance.GroupKey]int32{}
				for key, group := range snapshot(t, open(t, store)) {
					if !group.Static {
						after[key] = group.Size
					}
				}
				if diff := cmp.Diff(tc.sizes, after); diff != "" {
					t.Errorf("sizes in the storage (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(snapshot(t, open(t, store)), snapshot(t, s)); diff != "" {
					t.Errorf("(-storage +memory):\n%s", diff)
				}
			})
		}
	}
}

// TestUnconfirmedFirstWrite is TestUnconfirmedWrite for the creation of the
// object.
func TestUnconfirmedFirstWrite(t *testing.T) {
	for when, lost := range map[string]struct{ before, after []error }{
		"not done": {before: []error{errLost}},
		"done":     {after: []error{errLost}},
	} {
		t.Run(when, func(t *testing.T) {
			store := newFaultyStore(t)
			store.before, store.after = lost.before, lost.after
			s := open(t, store)
			if _, _, err := s.Upsert(t.Context(), dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1}); !errors.Is(err, errLost) {
				t.Fatalf("got error %v, want the storage's", err)
			}
			upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 2})
			if size := get(t, open(t, store), dynamic).Size; size != 2 {
				t.Errorf("the size is %d, want 2", size)
			}
		})
	}
}

// TestReconfigureAfterALostWrite checks that the active settings are the stored settings.
func TestReconfigureAfterALostWrite(t *testing.T) {
	store := newFaultyStore(t)
	store.after = []error{nil, errLost}
	s := open(t, store)
	upsert(t, s, main, Change{Size: 4})
	if err := s.Reconfigure(t.Context(), newConfigWith(nil)); !errors.Is(err, errLost) {
		t.Fatalf("got error %v, want the storage's", err)
	}
	next := newConfigWith(map[string]config.Group{"main": {Template: "worker"}})
	reconfigure(t, s, next)
	wantSame(t, s, store)
}

// TestAnotherServerWritesAfterALostWrite checks that the server replaces only
// versions that it may have written itself.
func TestAnotherServerWritesAfterALostWrite(t *testing.T) {
	tests := []struct {
		name  string
		write func(*testing.T, storage.Store)
	}{
		{"changes a group", func(t *testing.T, store storage.Store) { upsert(t, open(t, store), dynamic, Change{Size: 9}) }},
		{"removes the object", func(t *testing.T, store storage.Store) {
			require.NoError(t, store.Delete(t.Context(), objectKey))
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			store := newFaultyStore(t)
			s := open(t, store)
			upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
			store.after = []error{errLost}
			if _, _, err := s.Upsert(t.Context(), dynamic, Change{Size: 2}); !errors.Is(err, errLost) {
				t.Fatalf("got error %v, want the storage's", err)
			}
			tc.write(t, store)
			object, writes := readObject(t, store), store.writes
			for range 2 {
				if _, _, err := s.Upsert(t.Context(), dynamic, Change{Size: 2}); !errors.Is(err, storage.ErrConflict) {
					t.Errorf("got error %v, want a conflict", err)
				}
			}
			// Only the storage can detect conflicts.
			if store.writes != writes+2 {
				t.Error("there was no write")
			}
			if diff := cmp.Diff(object, readObject(t, store)); diff != "" {
				t.Errorf("the object has changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestUnreadableStorage checks that nothing is written until the result of a
// failed write is known.
func TestUnreadableStorage(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
	store.before, store.reading = []error{errLost}, errors.New("no route")
	for _, want := range []error{errLost, store.reading} {
		if _, _, err := s.Upsert(t.Context(), dynamic, Change{Size: 2}); !errors.Is(err, want) || errors.Is(err, storage.ErrConflict) {
			t.Errorf("got error %v, want %v", err, want)
		}
	}
	if _, err := Open(t.Context(), nil, newConfig(), store); !errors.Is(err, store.reading) {
		t.Errorf("Open returns %v, want %v", err, store.reading)
	}
	store.reading = nil
	upsert(t, s, dynamic, Change{Size: 2})
	if size := get(t, open(t, store), dynamic).Size; size != 2 {
		t.Errorf("the size is %d, want 2", size)
	}
}
