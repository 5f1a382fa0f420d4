// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func version(name, resourceVersion string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: resourceVersion}}
}

func TestCaughtUp(t *testing.T) {
	written := cache.NewObjectName("default", "written")
	other := cache.NewObjectName("default", "other")
	tests := map[string]struct {
		// cached are added to the cache in order, before wrote is recorded.
		cached []*corev1.ConfigMap
		wrote  *corev1.ConfigMap
		keys   []cache.ObjectName
		want   bool
	}{
		"nothing was written": {
			cached: []*corev1.ConfigMap{version("written", "9")}, keys: []cache.ObjectName{written}, want: true,
		},
		"the cache is from before the write": {
			cached: []*corev1.ConfigMap{version("written", "9")}, wrote: version("written", "10"),
			keys: []cache.ObjectName{written}, want: false,
		},
		"the cache has the write": {
			cached: []*corev1.ConfigMap{version("written", "10")}, wrote: version("written", "10"),
			keys: []cache.ObjectName{written}, want: true,
		},
		"the cache has something newer of another object": {
			cached: []*corev1.ConfigMap{version("written", "9"), version("other", "11")}, wrote: version("written", "10"),
			keys: []cache.ObjectName{written}, want: true,
		},
		"a write to another object does not count": {
			cached: []*corev1.ConfigMap{version("written", "9")}, wrote: version("written", "10"),
			keys: []cache.ObjectName{other}, want: true,
		},
		"one of several keys was written": {
			cached: []*corev1.ConfigMap{version("written", "9")}, wrote: version("written", "10"),
			keys: []cache.ObjectName{other, written}, want: false,
		},
		"versions that cannot be compared block nothing": {
			cached: []*corev1.ConfigMap{version("written", "9")}, wrote: version("written", "v10"),
			keys: []cache.ObjectName{written}, want: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			store := cache.NewStore(cache.MetaNamespaceKeyFunc)
			for _, object := range test.cached {
				require.NoError(t, store.Add(object))
			}
			writes := NewWriteTracker(store)
			if test.wrote != nil {
				writes.Record(test.wrote)
			}
			if got := writes.CaughtUp(test.keys...); got != test.want {
				t.Errorf("CaughtUp(%v) = %t, want %t", test.keys, got, test.want)
			}
		})
	}
}

// A cache may be stale for a long time, and each sync costs requests.
func TestStaleSyncsAreRetriedWithBackoff(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	require.NoError(t, store.Add(version("written", "9")))
	key, other := cache.NewObjectName("default", "written"), cache.NewObjectName("default", "other")
	writes, reads := NewWriteTracker(store), &StaleReads{}
	retries := func(delay func() time.Duration) int {
		count := 0
		for waited := time.Duration(0); waited < 30*time.Second; count++ {
			waited += delay()
		}
		return count
	}
	writes.Record(version("written", "10"))
	for what, delay := range map[string]func() time.Duration{
		"of a write": func() time.Duration { return writes.Delay(other, key) },
		"of a read":  func() time.Duration { return reads.Delay(key) },
	} {
		if got := retries(delay); got < 5 || got > 12 {
			t.Errorf("%s: %d retries in 30 s, want at most 12", what, got)
		}
		if got := delay(); got != maxStaleRetry {
			t.Errorf("%s: the delay is %s, want %s", what, got, maxStaleRetry)
		}
	}
	if got := writes.Delay(other); got != StaleRetry {
		t.Errorf("the delay of another object is %s", got)
	}

	// Another write, and caches that were current in between.
	writes.Record(version("written", "11"))
	reads.Reset(key)
	for what, got := range map[string]time.Duration{"of a write": writes.Delay(key), "of a read": reads.Delay(key)} {
		if got != StaleRetry {
			t.Errorf("%s: the delay begins with %s, want %s", what, got, StaleRetry)
		}
	}
	require.NoError(t, store.Add(version("written", "11")))
	require.True(t, writes.CaughtUp(key))
	reads.Reset(key)
	if len(writes.last)+len(reads.delays) > 0 {
		t.Errorf("the delays of %v and %v are remembered", writes.last, reads.delays)
	}
}

// CaughtUp is never called again with the key of a deleted object.
func TestWritesForgetsWhatTheCacheHas(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	writes := NewWriteTracker(store)
	for n := range 10 * minSweep {
		name, at := fmt.Sprint("deleted-", n), fmt.Sprint(n+1)
		writes.Record(version(name, at))
		require.NoError(t, store.Add(version("other", at)))
		require.Less(t, len(writes.last), minSweep, "remembered writes")
	}
	assert.True(t, writes.CaughtUp(cache.NewObjectName("default", "other")), "a write to another object counted")
}

// What a sync reads from the cache before the cache catches up stays stale afterwards.
func TestMarkIsFromBeforeTheCacheCatchesUp(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	require.NoError(t, store.Add(version("other", "1")))
	writes, key := NewWriteTracker(store), cache.NewObjectName("default", "written")
	assert.True(t, writes.HadCaughtUp(writes.Mark(), key), "nothing was written")
	writes.Record(version("written", "2"))
	before := writes.Mark()
	require.NoError(t, store.Add(version("written", "2")))
	assert.False(t, writes.HadCaughtUp(before, key))
	assert.True(t, writes.HadCaughtUp(before, cache.NewObjectName("default", "other")))
	assert.True(t, writes.HadCaughtUp(writes.Mark(), key))
}

// The writes of other syncs drop those that the cache has, also between the mark of a sync and its
// question.
func TestAWriteThatWasDroppedIsNotTakenForCached(t *testing.T) {
	key := cache.NewObjectName("default", "written")
	for name, drop := range map[string]func(*WriteTracker){
		"by another write": func(w *WriteTracker) {
			for n := range minSweep {
				w.Record(version(fmt.Sprint("other-", n), fmt.Sprint(1000+n)))
			}
		},
		"by the question of another sync": func(w *WriteTracker) { w.CaughtUp(key) },
	} {
		t.Run(name, func(t *testing.T) {
			store := cache.NewStore(cache.MetaNamespaceKeyFunc)
			require.NoError(t, store.Add(version("other", "1")))
			writes := NewWriteTracker(store)
			writes.Record(version("written", "2"))
			before := writes.Mark()
			require.NoError(t, store.Add(version("written", "2")))
			drop(writes)
			require.NotContains(t, writes.last, key)
			assert.False(t, writes.HadCaughtUp(before, key))
			assert.True(t, writes.HadCaughtUp(writes.Mark(), key))
		})
	}
}

// During a burst, such as the import of all groups, thousands of writes are pending, and each of
// as many syncs asks for its own.
func TestPendingWritesOfOthersAreNotVisited(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	require.NoError(t, store.Add(version("other", "1")))
	writes, compared := NewWriteTracker(store), 0
	writes.compare = func(a, b string) (int, error) {
		compared++
		return resourceversion.CompareResourceVersion(a, b)
	}
	const count = 5000
	for n := range count {
		name := fmt.Sprint("written-", n)
		writes.Record(version(name, fmt.Sprint(n+2)))
		require.False(t, writes.CaughtUp(cache.NewObjectName("default", name)))
	}
	assert.LessOrEqual(t, compared, 4*count, "compared versions while nothing is cached")
	require.NoError(t, store.Add(version("other", fmt.Sprint(count+1))))
	compared = 0
	for n := range count {
		require.True(t, writes.CaughtUp(cache.NewObjectName("default", fmt.Sprint("written-", n))))
	}
	assert.Equal(t, count, compared, "compared versions when all are cached")
	assert.Empty(t, writes.last)

	// A sync that finds the name of its object later takes a mark before, not a copy of all names.
	for n := range count {
		writes.Record(version(fmt.Sprint("written-", n), fmt.Sprint(2*count+n)))
	}
	compared = 0
	assert.False(t, writes.HadCaughtUp(writes.Mark(), cache.NewObjectName("default", "written-0")))
	assert.Equal(t, 1, compared)
}

// The cache may be stale: the patch is for this object and this finalizer, and for no others that
// have its name and its place since.
func TestRemoveFinalizer(t *testing.T) {
	object := version("a", "1")
	object.UID, object.Finalizers = "uid", []string{"other", "own"}
	patch, err := RemoveFinalizer(object, "own")
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"op": "test", "path": "/metadata/uid", "value": "uid"},
		{"op": "test", "path": "/metadata/finalizers/1", "value": "own"},
		{"op": "remove", "path": "/metadata/finalizers/1"}
	]`, string(patch))
	patch, err = RemoveFinalizer(object, "missing")
	require.NoError(t, err)
	require.Nil(t, patch)
}

func TestApplyConfiguration(t *testing.T) {
	condition := metav1.Condition{
		Type: "Ready", Status: metav1.ConditionFalse, Reason: "Scaling",
		ObservedGeneration: 3, LastTransitionTime: metav1.NewTime(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
	}
	applied := ApplyConfiguration[metav1ac.ConditionApplyConfiguration](condition)
	got := metav1.Condition{
		Type: *applied.Type, Status: *applied.Status, Reason: *applied.Reason, Message: *applied.Message,
		ObservedGeneration: *applied.ObservedGeneration, LastTransitionTime: metav1.NewTime(applied.LastTransitionTime.UTC()),
	}
	if got != condition {
		t.Errorf("got %+v, want %+v", got, condition)
	}
	if empty := ApplyConfiguration[metav1ac.ConditionApplyConfiguration](metav1.Condition{}); empty.ObservedGeneration != nil || empty.LastTransitionTime != nil {
		t.Errorf("an empty condition applies %+v", empty)
	}
}
