// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
)

// counted counts the calls of Get, and calls during in each.
type counted struct {
	Store
	gets   int
	during func()
}

func (c *counted) Get(ctx context.Context, name string) ([]byte, error) {
	c.gets++
	data, err := c.Store.Get(ctx, name)
	if c.during != nil {
		c.during()
	}
	return data, err
}

func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counted{Store: newStore(t, newStorage(t), current)}
		cached := WithCache(store, time.Minute)
		get := func(want string, wantGets int) {
			t.Helper()
			store.gets = 0
			data, err := cached.Get(t.Context(), "a")
			require.NoError(t, err)
			assert.Equal(t, want, string(data))
			assert.Equal(t, wantGets, store.gets, "calls of the store")
			clear(data) // the caller owns it
		}
		// A missing secret is not cached.
		_, err := cached.Get(t.Context(), "a")
		require.ErrorIs(t, err, storage.ErrNotFound)
		require.NoError(t, store.Set(t.Context(), "a", []byte("first")))
		get("first", 1)
		get("first", 0)
		require.NoError(t, store.Set(t.Context(), "a", []byte("of another process")))
		time.Sleep(time.Minute - time.Nanosecond)
		get("first", 0)
		time.Sleep(time.Nanosecond)
		get("of another process", 1)
		require.NoError(t, cached.Set(t.Context(), "a", []byte("own")))
		get("own", 1)
		get("own", 0)

		// A secret that was read before a write of this process is not kept.
		time.Sleep(time.Minute)
		store.during = func() { require.NoError(t, cached.Set(t.Context(), "a", []byte("newer"))) }
		get("own", 1)
		store.during = nil
		get("newer", 1)
		require.NoError(t, cached.Delete(t.Context(), "a"))
		_, err = cached.Get(t.Context(), "a")
		require.ErrorIs(t, err, storage.ErrNotFound)
	})
}

func TestNoCache(t *testing.T) {
	store := &counted{Store: newStore(t, newStorage(t), current)}
	assert.Same(t, store, WithCache(store, 0).(*counted))
}

var errNotLeading = errors.New("not leading")

// TestContexts: without leadership nothing is written, and everything is read.
func TestContexts(t *testing.T) {
	store := newStore(t, newStorage(t), current)
	leads := true
	guarded := WithContexts(store, context.WithCancel, func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		if !leads {
			cancel(errNotLeading)
		}
		return ctx, func() { cancel(nil) }
	})
	require.NoError(t, guarded.Set(t.Context(), "a", []byte("x")))
	leads = false
	require.ErrorIs(t, guarded.Create(t.Context(), "b", nil), errNotLeading)
	require.ErrorIs(t, guarded.Set(t.Context(), "a", nil), errNotLeading)
	require.ErrorIs(t, guarded.Delete(t.Context(), "a"), errNotLeading)
	data, err := guarded.Get(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, "x", string(data))
	list, err := guarded.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, list)
}

// TestWithoutKeys: secrets can be listed and deleted, and not read or written.
func TestWithoutKeys(t *testing.T) {
	objects := newStorage(t)
	require.NoError(t, newStore(t, objects, current).Set(t.Context(), "a", []byte("x")))
	s := WithoutKeys(objects)
	require.ErrorIs(t, s.Set(t.Context(), "a", nil), errNoKey)
	require.ErrorIs(t, s.Create(t.Context(), "b", nil), errNoKey)
	_, err := s.Get(t.Context(), "a")
	require.ErrorContains(t, err, "0 keys")
	require.NoError(t, s.Delete(t.Context(), "a"))
	list, err := s.List(t.Context())
	require.NoError(t, err)
	assert.Empty(t, list)
}
