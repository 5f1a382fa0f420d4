// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storagetest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/storage"
)

// testConcurrentCreates creates the same object with 32 clients.
func testConcurrentCreates(t *testing.T, open func(t testing.TB) storage.Store) {
	const key = "concurrent-creates/object"
	const rounds, clients = 4, 32
	stores := make([]storage.Store, clients)
	for i := range stores {
		stores[i] = open(t)
	}
	for round := range rounds {
		key := key + strconv.Itoa(round)
		var start sync.WaitGroup
		start.Add(clients)
		var group errgroup.Group
		var winners atomic.Int32
		var winner atomic.Value
		for i, store := range stores {
			group.Go(func() error {
				start.Done()
				start.Wait()
				// Two clients each write the same data, and still only one succeeds.
				data := strconv.Itoa(i / 2)
				_, err := store.Create(t.Context(), key, []byte(data))
				if errors.Is(err, storage.ErrConflict) {
					return nil
				}
				if err == nil {
					winners.Add(1)
					winner.Store(data)
				}
				return err
			})
		}
		require.NoError(t, group.Wait())
		if n := winners.Load(); n != 1 {
			t.Fatalf("%d clients have created %s, want one", n, key)
		}
		assert.Equal(t, winner.Load(), string(mustGet(t, stores[0], key).Data), "the data of %s", key)
	}
}

// testConcurrentCounters increments one object in 8 goroutines. Two concurrent
// increments write the same data, and one of them must be rejected.
func testConcurrentCounters(t *testing.T, open func(t testing.TB) storage.Store) {
	const key = "concurrent-counters/object"
	const counters, increments = 8, 25
	mustCreate(t, open(t), key, "0")
	var group errgroup.Group
	for range counters {
		store := open(t)
		group.Go(func() error {
			for range increments {
				if err := Increment(t.Context(), store, key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	if got, want := string(mustGet(t, open(t), key).Data), strconv.Itoa(counters*increments); got != want {
		t.Errorf("counted to %s, want %s", got, want)
	}
}

// Increment adds one to the number in an object. It is safe for concurrent use by
// several clients.
func Increment(ctx context.Context, store storage.Store, key string) error {
	for {
		object, err := store.Get(ctx, key)
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(string(object.Data))
		if err != nil {
			return err
		}
		_, err = store.Replace(ctx, key, []byte(strconv.Itoa(number+1)), object.ETag)
		if !errors.Is(err, storage.ErrConflict) {
			return err
		}
	}
}
