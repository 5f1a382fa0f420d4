// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Writes remembers what was last written to the objects of one resource. A sync
// that reads a cache from before its own last write would write the same again;
// with Writes it knows to wait for the cache.
type Writes struct {
	store cache.Store

	mu   sync.Mutex
	last map[cache.ObjectName]string
}

// NewWrites remembers writes to the resource that store caches.
func NewWrites(store cache.Store) *Writes {
	return &Writes{store: store, last: make(map[cache.ObjectName]string)}
}

// Wrote records the object that the API server returned for a write.
func (w *Writes) Wrote(object metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[cache.MetaObjectToName(object)] = object.GetResourceVersion()
}

// Seen tells whether the cache is at least as new as the last write to each of
// the objects named by keys.
func (w *Writes) Seen(keys ...cache.ObjectName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.last) == 0 {
		return true
	}
	// All that the cache has caught up with is forgotten, not only what was asked
	// for: nobody asks again for an object that was deleted.
	cached := w.store.LastStoreSyncResourceVersion()
	maps.DeleteFunc(w.last, func(_ cache.ObjectName, written string) bool {
		order, err := resourceversion.CompareResourceVersion(cached, written)
		// A version that cannot be compared says nothing about staleness.
		return err != nil || order >= 0
	})
	return !slices.ContainsFunc(keys, func(key cache.ObjectName) bool {
		_, unseen := w.last[key]
		return unseen
	})
}
