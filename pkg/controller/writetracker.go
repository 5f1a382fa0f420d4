// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// StaleRetry is the first delay of a sync whose caches are older than its last write, and
// maxStaleRetry the longest: a cache may be stale for as long as the API server is slow.
const (
	StaleRetry    = 50 * time.Millisecond
	maxStaleRetry = 5 * time.Second
)

// WriteTracker records the last write to each object of one resource. A sync that
// reads a cache from before its own last write would repeat that write; with a
// WriteTracker it waits for the cache instead.
type WriteTracker struct {
	store cache.Store

	mu   sync.Mutex
	last map[cache.ObjectName]pendingWrite
}

// pendingWrite is a write that the cache does not have.
type pendingWrite struct {
	resourceVersion string
	// delay is the last delay of a sync that waits for it.
	delay time.Duration
}

// NewWriteTracker tracks writes to the resource that store caches.
func NewWriteTracker(store cache.Store) *WriteTracker {
	return &WriteTracker{store: store, last: make(map[cache.ObjectName]pendingWrite)}
}

// Record records the object that the API server returned for a write.
func (w *WriteTracker) Record(object metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[cache.MetaObjectToName(object)] = pendingWrite{resourceVersion: object.GetResourceVersion()}
}

// CaughtUp reports whether the cache is at least as new as the last write to each
// of the objects named by keys.
func (w *WriteTracker) CaughtUp(keys ...cache.ObjectName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.last) == 0 {
		return true
	}
	// Every write that the cache has is dropped, not only those of keys: a deleted
	// object has no later sync that would drop it.
	cached := w.store.LastStoreSyncResourceVersion()
	maps.DeleteFunc(w.last, func(_ cache.ObjectName, written pendingWrite) bool {
		order, err := resourceversion.CompareResourceVersion(cached, written.resourceVersion)
		// A version that cannot be compared is no proof of a stale cache.
		return err != nil || order >= 0
	})
	return !slices.ContainsFunc(keys, func(key cache.ObjectName) bool {
		_, pending := w.last[key]
		return pending
	})
}

// Delay returns the delay of a sync for which CaughtUp is false: StaleRetry, which doubles
// with each call while the same writes are pending.
func (w *WriteTracker) Delay(keys ...cache.ObjectName) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := StaleRetry
	for _, key := range keys {
		if pending, found := w.last[key]; found {
			pending.delay = nextStaleRetry(pending.delay)
			w.last[key] = pending
			longest = max(longest, pending.delay)
		}
	}
	return longest
}

// StaleReads are the delays of syncs that found in a live read that a cache is stale.
type StaleReads struct {
	mu     sync.Mutex
	delays map[cache.ObjectName]time.Duration
}

// Delay returns the delay of such a sync: StaleRetry, which doubles with each call until
// Reset.
func (r *StaleReads) Delay(key cache.ObjectName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.delays == nil {
		r.delays = make(map[cache.ObjectName]time.Duration)
	}
	r.delays[key] = nextStaleRetry(r.delays[key])
	return r.delays[key]
}

// Reset is called when the caches of key are not stale.
func (r *StaleReads) Reset(key cache.ObjectName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.delays, key)
}

func nextStaleRetry(last time.Duration) time.Duration {
	return min(max(2*last, StaleRetry), maxStaleRetry)
}
