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

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// gatedStore is a storage whose writes wait: each one sends its context to
// begun, and receives its error from results.
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

// next ends the write in progress, and returns the context of the next one.
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

// TestFailedWriteFailsItsChanges checks that a write that fails, fails exactly
// the changes that depend on it.
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
