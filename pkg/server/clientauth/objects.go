// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/storage"
)

const (
	// minInterval is the minimum time between two reads of one object, or two attempts to
	// create it. Calls that need a newer version wait for so long.
	minInterval = time.Second
	// storageTimeout is the timeout of each request to the storage. Calls may wait for it,
	// and operators wait 10 s.
	storageTimeout = 3 * time.Second
	// maxAge is the age at which get reads an object again. The objects of connected
	// clients are refreshed more often.
	maxAge = 2 * interval
	// parallelReads is how many objects are refreshed at the same time.
	parallelReads = 32
)

// objects caches JSON objects of the storage by key. A failed read changes nothing: the
// previous value is kept. No object is removed from the cache: there are only few tenants,
// and the previous value of a tenant must apply when the storage cannot be read. It is safe
// for concurrent use.
type objects[T any] struct {
	store  storage.Store
	logger klog.Logger
	calls  singleflight.Group

	mu     sync.Mutex
	cached map[string]*object[T]
	// began counts reads when they begin. Times are too coarse to order a read and an event.
	began int64
}

// object is the state of one object.
type object[T any] struct {
	// value is the result of the last successful read; nil if there was no object.
	value *T
	// read is the number of the last successful read, zero if no read succeeded yet, and
	// tried the number of the last read. err is the error of the last read, and triedAt is
	// when it began.
	read, tried int64
	err         error
	triedAt     time.Time
	// createdAt is when the last attempt to create the object began.
	createdAt time.Time
}

func newObjects[T any](logger klog.Logger, store storage.Store) *objects[T] {
	return &objects[T]{store: store, logger: logger, cached: map[string]*object[T]{}}
}

// get returns the result of the last successful read of an object, after another read if the
// last read is older than maxAge. known is false if no read has succeeded.
func (o *objects[T]) get(ctx context.Context, key string) (value *T, known bool) {
	state := o.state(key)
	if state.tried == 0 || time.Since(state.triedAt) > maxAge {
		// After an error, which was logged, the previous read applies.
		_, _ = o.getSince(ctx, key, o.now())
		state = o.state(key)
	}
	return state.value, state.read != 0
}

// now returns the present moment for getSince.
func (o *objects[T]) now() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.began
}

// getSince returns the object from a read that began after a moment.
func (o *objects[T]) getSince(ctx context.Context, key string, moment int64) (*T, error) {
	for {
		state := o.state(key)
		switch {
		case state.read > moment:
			return state.value, nil
		case state.tried > moment:
			return nil, state.err
		}
		// A read that is in progress may have begun too early.
		done := o.calls.DoChan(key, func() (any, error) {
			o.load(context.WithoutCancel(ctx), key)
			return nil, nil
		})
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-done:
		}
	}
}

// refresh reads the objects with these keys.
func (o *objects[T]) refresh(ctx context.Context, keys map[string]struct{}) {
	var reads errgroup.Group
	reads.SetLimit(parallelReads)
	now := o.now()
	for key := range keys {
		reads.Go(func() error {
			// The error was logged.
			_, _ = o.getSince(ctx, key, now)
			return nil
		})
	}
	_ = reads.Wait()
}

// load reads an object when minInterval has passed since the last read.
func (o *objects[T]) load(ctx context.Context, key string) {
	before := o.state(key)
	pause(before.triedAt)
	began, number := time.Now(), o.begin()
	value, err := read[T](ctx, o.store, key)
	switch {
	case err != nil && before.err == nil:
		o.logger.Error(err, "Failed to read an object, the last successful read applies", "key", key)
	case err == nil && before.err != nil:
		o.logger.Info("An object can be read again", "key", key)
	}
	o.change(key, func(state *object[T]) {
		state.tried, state.triedAt, state.err = number, began, err
		if err == nil {
			state.read, state.value = number, value
		}
	})
}

func (o *objects[T]) begin() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.began++
	return o.began
}

// pause waits until minInterval has passed since a time. It has no context: several callers wait for
// one read, and minInterval is short.
func pause(since time.Time) {
	if !since.IsZero() {
		time.Sleep(time.Until(since.Add(minInterval)))
	}
}

func read[T any](ctx context.Context, store storage.Store, key string) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	stored, err := store.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value := new(T)
	if err := storage.CheckFormat(stored.Data); err != nil {
		return nil, fmt.Errorf("object %s: %w", key, err)
	}
	if err := json.Unmarshal(stored.Data, value); err != nil {
		return nil, fmt.Errorf("object %s: %w", key, err)
	}
	return value, nil
}

// create creates an object when minInterval has passed since the last attempt. It
// fails if the object exists. Concurrent calls with the same id create the same value.
func (o *objects[T]) create(ctx context.Context, key, id string, value T) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	done := o.calls.DoChan(key+"\x00"+id, func() (any, error) {
		pause(o.state(key).createdAt)
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storageTimeout)
		defer cancel()
		_, err := o.store.Create(ctx, key, data)
		o.change(key, func(state *object[T]) {
			state.createdAt = began
			if err == nil {
				state.value = &value
			}
		})
		return nil, err
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case result := <-done:
		return result.Err
	}
}

func (o *objects[T]) state(key string) object[T] {
	o.mu.Lock()
	defer o.mu.Unlock()
	if state := o.cached[key]; state != nil {
		return *state
	}
	return object[T]{}
}

func (o *objects[T]) change(key string, change func(*object[T])) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cached[key] == nil {
		o.cached[key] = &object[T]{}
	}
	change(o.cached[key])
}
