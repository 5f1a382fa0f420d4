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

	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/storage"
)

// testRacingCreates lets 32 clients create the same object.
func testRacingCreates(t *testing.T, open func(t testing.TB) storage.Store) {
	const key = "racing-creates/object"
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
				// Half of them write the same, and still one wins.
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
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if n := winners.Load(); n != 1 {
			t.Fatalf("%d clients have created %s, want one", n, key)
		}
		if got := string(mustGet(t, stores[0], key).Data); got != winner.Load() {
			t.Errorf("%s holds %q, but %q was told to have won", key, got, winner.Load())
		}
	}
}

// testRacingCounters lets 8 goroutines count in one object. Two that count at
// the same time write the same data, of which one must be told.
func testRacingCounters(t *testing.T, open func(t testing.TB) storage.Store) {
	const key = "racing-counters/object"
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
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, want := string(mustGet(t, open(t), key).Data), strconv.Itoa(counters*increments); got != want {
		t.Errorf("counted to %s, want %s", got, want)
	}
}

// Increment adds one to the number in an object, however many others do so at
// the same time.
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
