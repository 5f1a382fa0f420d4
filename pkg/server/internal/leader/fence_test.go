// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/storage"
)

// writes are the calls that only the leader may make, on an object with the
// etag.
var writes = map[string]func(ctx context.Context, store storage.Store, etag string) error{
	"create": func(ctx context.Context, store storage.Store, _ string) error {
		_, err := store.Create(ctx, "instance/new.json", []byte("new"))
		return err
	},
	"replace": func(ctx context.Context, store storage.Store, etag string) error {
		_, err := store.Replace(ctx, "instance/old.json", []byte("new"), etag)
		return err
	},
	"delete": func(ctx context.Context, store storage.Store, _ string) error {
		return store.Delete(ctx, "instance/old.json")
	},
}

// fenced is a leading server and a storage behind its fence.
type fenced struct {
	*server
	// behind is between the fence and the storage.
	behind *link
	// write is one of writes, made through the fence.
	write func(ctx context.Context) error
}

func forEachWrite(t *testing.T, test func(t *testing.T, f fenced)) {
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				etag, err := store.Create(t.Context(), "instance/old.json", []byte("old"))
				require.NoError(t, err)
				f := fenced{server: start(t, store, "one", nil), behind: newLink(store)}
				expectTerms(t, f.server, 1, true)
				f.write = func(ctx context.Context) error { return write(ctx, f.Fence(f.behind), etag) }
				test(t, f)
			})
		})
	}
}

// expectUnchanged checks that nothing was written behind the fence.
func (f fenced) expectUnchanged(t *testing.T) {
	t.Helper()
	// Reads are not restricted.
	reader := f.Fence(f.behind)
	objects, err := reader.List(t.Context(), "instance/")
	require.NoError(t, err)
	old, err := reader.Get(t.Context(), "instance/old.json")
	if err != nil || string(old.Data) != "old" || len(objects) != 1 {
		t.Errorf("there are the objects %v, the old one is %q, %v", objects, old.Data, err)
	}
}

func TestLeaderWrites(t *testing.T) {
	forEachWrite(t, func(t *testing.T, f fenced) {
		pass(10*interval + time.Second)
		if err := f.write(t.Context()); err != nil {
			t.Error(err)
		}
		if _, writes := f.behind.count(); writes != 1 {
			t.Errorf("there were %d writes", writes)
		}
	})
}

func TestOnlyTheLeaderWrites(t *testing.T) {
	forEachWrite(t, func(t *testing.T, f fenced) {
		f.stop()
		<-f.done
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ctx := range []context.Context{t.Context(), canceled} {
			if err := f.write(ctx); !errors.Is(err, leader.ErrNotLeading) {
				t.Errorf("the error is %v, want %v", err, leader.ErrNotLeading)
			}
		}
		if calls, _ := f.behind.count(); calls != 0 {
			t.Errorf("the storage was called %d times", calls)
		}
		f.expectUnchanged(t)
	})
}

// TestWriteFailsAtTheEndOfTheLease checks that a longer write fails exactly at
// the end of the lease.
func TestWriteFailsAtTheEndOfTheLease(t *testing.T) {
	forEachWrite(t, func(t *testing.T, f fenced) {
		pass(interval + time.Second)
		f.behind.set(hanging)
		result := make(chan error, 1)
		go func() { result <- f.write(t.Context()) }()
		pass(lease - time.Second - 1)
		if len(result) > 0 {
			t.Fatalf("the write returned early: %v", <-result)
		}
		pass(1)
		if len(result) == 0 {
			t.Fatal("the write continues after the lease")
		}
		if err := <-result; !errors.Is(err, leader.ErrNotLeading) {
			t.Errorf("the error is %v, want %v", err, leader.ErrNotLeading)
		}
		f.behind.set(working)
		f.expectUnchanged(t)
	})
}

// TestPausedWriterWritesNothing pauses a process in the middle of a write. It
// resumes after its lease has expired, and only then sees the time.
func TestPausedWriterWritesNothing(t *testing.T) {
	forEachWrite(t, func(t *testing.T, f fenced) {
		f.behind.set(paused)
		f.link.set(paused)
		result := make(chan error, 1)
		go func() { result <- f.write(t.Context()) }()
		pass(lease)
		f.behind.set(working)
		if err := <-result; !errors.Is(err, leader.ErrNotLeading) {
			t.Errorf("the error is %v, want %v", err, leader.ErrNotLeading)
		}
		f.expectUnchanged(t)
	})
}

// TestOtherErrorsOfWrites checks that unrelated errors are not reported as lost leadership.
func TestOtherErrorsOfWrites(t *testing.T) {
	forEachWrite(t, func(t *testing.T, f fenced) {
		f.behind.set(down)
		if err := f.write(t.Context()); !errors.Is(err, errLink) || errors.Is(err, leader.ErrNotLeading) {
			t.Errorf("the error is %v, want %v", err, errLink)
		}
		f.behind.set(hanging)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.write(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, leader.ErrNotLeading) {
			t.Errorf("the error is %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

func TestCallsFailAtTheEndOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, openStorage(t), "one", nil)
		began := time.Now()
		pass(3*interval + time.Second)
		ctx, cancel := s.Context(t.Context())
		defer cancel()
		if deadline, _ := ctx.Deadline(); !deadline.Equal(began.Add(3*interval + lease)) {
			t.Errorf("%v after the last renewal a call has until %v after the first", time.Second, deadline.Sub(began))
		}
		pass(lease - time.Second - 1)
		if ctx.Err() != nil {
			t.Error(ctx.Err())
		}
		pass(1)
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), leader.ErrNotLeading) {
			t.Errorf("after the lease the call has the error %v because of %v", ctx.Err(), context.Cause(ctx))
		}

		s.stop()
		<-s.done
		ctx, cancel = s.Context(t.Context())
		defer cancel()
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), leader.ErrNotLeading) {
			t.Errorf("without leading the call has the error %v because of %v", ctx.Err(), context.Cause(ctx))
		}
	})
}

// TestCallsFollowTheLease checks that a call that is longer than a lease lasts as long as
// the lease is renewed.
func TestCallsFollowTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, openStorage(t), "one", nil)
		pass(time.Second)
		ctx, cancel := s.Follow(t.Context())
		defer cancel()
		pass(5 * interval)
		require.NoError(t, deadline.Check(ctx), "after five renewals")
		s.link.set(down)
		pass(lease - time.Second - 1)
		require.NoError(t, deadline.Check(ctx), "before the end of the last lease")
		pass(1)
		require.Error(t, ctx.Err())
		require.ErrorIs(t, context.Cause(ctx), leader.ErrNotLeading)

		s.stop()
		<-s.done
		ctx, cancel = s.Follow(t.Context())
		defer cancel()
		require.Error(t, ctx.Err(), "without leading")
		require.ErrorIs(t, context.Cause(ctx), leader.ErrNotLeading)
	})
}

// TestPausedCallIsNotMade after the lease has expired although the context is not done yet.
func TestPausedCallIsNotMade(t *testing.T) {
	end := time.Now().Add(time.Hour)
	ctx := deadline.WithLease(t.Context(), func() time.Time { return end })
	require.NoError(t, deadline.Check(ctx))
	end = time.Now()
	require.ErrorIs(t, deadline.Check(ctx), context.DeadlineExceeded)
}
