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

// StaleRetry is the delay of a sync whose caches are older than its last write.
const StaleRetry = 50 * time.Millisecond

// WriteTracker records the last write to each object of one resource. A sync that
// reads a cache from before its own last write would repeat that write; with a
// WriteTracker it waits for the cache instead.
type WriteTracker struct {
	store cache.Store

	mu   sync.Mutex
	last map[cache.ObjectName]string
}

// NewWriteTracker tracks writes to the resource that store caches.
func NewWriteTracker(store cache.Store) *WriteTracker {
	return &WriteTracker{store: store, last: make(map[cache.ObjectName]string)}
}

// Record records the object that the API server returned for a write.
func (w *WriteTracker) Record(object metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[cache.MetaObjectToName(object)] = object.GetResourceVersion()
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
	maps.DeleteFunc(w.last, func(_ cache.ObjectName, written string) bool {
		order, err := resourceversion.CompareResourceVersion(cached, written)
		// A version that cannot be compared is no proof of a stale cache.
		return err != nil || order >= 0
	})
	return !slices.ContainsFunc(keys, func(key cache.ObjectName) bool {
		_, pending := w.last[key]
		return pending
	})
}
