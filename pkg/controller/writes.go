// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// A sync whose caches are older than its last write is retried after StaleRetry, which doubles
// up to maxStaleRetry: a cache may be stale for as long as the API server is slow.
const (
	StaleRetry    = 50 * time.Millisecond
	maxStaleRetry = 5 * time.Second
)

// WriteTracker records the last write to each object of one resource. A sync that reads a
// cache from before its own last write would repeat the write; with a WriteTracker it waits
// for the cache instead. It must ask the WriteTracker before it reads the cache: a cache that
// has caught up by then may not have when the object was read.
type WriteTracker struct {
	store cache.Store
	// compare compares two resource versions. A test counts its calls.
	compare func(a, b string) (int, error)

	mu   sync.Mutex
	last map[cache.ObjectName]pendingWrite
	// sweepAt is the number of writes in last at which the next Record drops those that the cache
	// has.
	sweepAt int
	// dropped is how new the cache was when writes that it has were dropped last, "" before.
	dropped string
}

// minSweep is the smallest number of writes at which they are swept. sweepAt is twice the number
// that the last sweep has left, so that a write costs the visit of two others at most on average.
const minSweep = 64

// pendingWrite is a write that the cache does not have.
type pendingWrite struct {
	resourceVersion string
	// delay is the last delay of a sync that waits for it.
	delay time.Duration
}

// NewWriteTracker tracks writes to the resource that store caches.
func NewWriteTracker(store cache.Store) *WriteTracker {
	return &WriteTracker{
		store: store, compare: resourceversion.CompareResourceVersion, last: make(map[cache.ObjectName]pendingWrite), sweepAt: minSweep,
	}
}

// Record records the object that the API server returned for a write.
func (w *WriteTracker) Record(object metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[cache.MetaObjectToName(object)] = pendingWrite{resourceVersion: object.GetResourceVersion()}
	if len(w.last) >= w.sweepAt {
		w.forgetCached()
		w.sweepAt = max(minSweep, 2*len(w.last))
	}
}

// CaughtUp reports whether the cache is at least as new as the last write to each of the
// objects named by keys. Resource versions of one resource can be compared
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions). It looks at
// these writes only, because thousands of others may be pending.
func (w *WriteTracker) CaughtUp(keys ...cache.ObjectName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.last) == 0 {
		return true
	}
	cached := w.store.LastStoreSyncResourceVersion()
	for _, key := range keys {
		written, pending := w.last[key]
		switch {
		case !pending:
		case !w.isCached(written.resourceVersion, cached):
			return false
		default:
			delete(w.last, key)
			w.dropped = cached
		}
	}
	return true
}

// Mark returns how new the cache is, for syncs that find the names of objects only in the cache:
// they call HadCaughtUp with it afterwards.
func (w *WriteTracker) Mark() (mark string) { return w.store.LastStoreSyncResourceVersion() }

// HadCaughtUp reports whether the cache certainly had the last write to an object when Mark returned
// mark. If writes were dropped since, the write may have been among them.
func (w *WriteTracker) HadCaughtUp(mark string, key cache.ObjectName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if written, pending := w.last[key]; pending {
		return w.isCached(written.resourceVersion, mark)
	}
	return w.isCached(w.dropped, mark)
}

// forgetCached drops every write that the cache has, whatever its object: a deleted object has
// no later sync that would drop it. The caller holds w.mu.
func (w *WriteTracker) forgetCached() {
	cached, before := w.store.LastStoreSyncResourceVersion(), len(w.last)
	maps.DeleteFunc(w.last, func(_ cache.ObjectName, written pendingWrite) bool {
		return w.isCached(written.resourceVersion, cached)
	})
	if len(w.last) < before {
		w.dropped = cached
	}
}

// isCached reports whether a cache that is as new as cached has what was written with a resource
// version. A version that cannot be compared is no proof of a stale cache.
func (w *WriteTracker) isCached(resourceVersion, cached string) bool {
	order, err := w.compare(cached, resourceVersion)
	return err != nil || order >= 0
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

// StaleReads computes delays for syncs whose live read showed that a cache is stale.
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

// Reset must be called when a sync finds that the caches of key are not stale.
func (r *StaleReads) Reset(key cache.ObjectName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.delays, key)
}

func nextStaleRetry(last time.Duration) time.Duration {
	return min(max(2*last, StaleRetry), maxStaleRetry)
}

// deletionPeriod is the time in which a cache is expected to show that an object is being
// deleted.
const deletionPeriod = time.Minute

// Deletions are the objects whose deletion was requested in the last deletionPeriod. The cache
// may not show it yet, and each sync until then would request it again.
type Deletions struct {
	clock clock.PassiveClock

	mu sync.Mutex
	at map[types.UID]time.Time
}

// NewDeletions returns an empty Deletions.
func NewDeletions(clock clock.PassiveClock) *Deletions {
	return &Deletions{clock: clock, at: make(map[types.UID]time.Time)}
}

// Record records that the API server has accepted the deletion of object.
func (d *Deletions) Record(object metav1.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock.Now()
	maps.DeleteFunc(d.at, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= deletionPeriod })
	d.at[object.GetUID()] = now
}

// Requested reports whether the deletion of object was recorded a short time ago.
func (d *Deletions) Requested(object metav1.Object) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.at[object.GetUID()]
	return ok && d.clock.Since(at) < deletionPeriod
}

// DeleteByUID returns options that delete object only if its UID is unchanged. If a newer
// object has the name, the API server returns a conflict
// (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/delete-options/).
func DeleteByUID(object metav1.Object) metav1.DeleteOptions {
	return *metav1.NewPreconditionDeleteOptions(string(object.GetUID()))
}

// RemoveFinalizer returns the JSON patch (RFC 6902) that removes finalizer from object, nil if
// object does not have it. The patch fails if the object was replaced or its finalizers have
// changed meanwhile.
func RemoveFinalizer(object metav1.Object, finalizer string) ([]byte, error) {
	at := slices.Index(object.GetFinalizers(), finalizer)
	if at < 0 {
		return nil, nil
	}
	path := fmt.Sprintf("/metadata/finalizers/%d", at)
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": object.GetUID()},
		{"op": "test", "path": path, "value": finalizer},
		{"op": "remove", "path": path},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the patch that removes finalizer %s of %s/%s: %w",
			finalizer, object.GetNamespace(), object.GetName(), err)
	}
	return patch, nil
}

// ApplyConfiguration returns an object, or a part of an object, as its apply configuration T. Both
// have the same JSON, so that a new field needs no code. A field that the type omits if it is empty
// is left out, which removes it from the object.
func ApplyConfiguration[T any](object any) *T {
	var applied T
	data, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(data, &applied)
	}
	if err != nil {
		// The generator makes T from the type of the object.
		panic(err)
	}
	return &applied
}
