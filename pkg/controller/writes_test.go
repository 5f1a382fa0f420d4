// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	writes.Record(version("deleted", "10"))
	writes.Record(version("later", "12"))
	require.NoError(t, store.Add(version("other", "11")))
	if !writes.CaughtUp(cache.NewObjectName("default", "other")) {
		t.Error("a write to another object counted")
	}
	if got := len(writes.last); got != 1 {
		t.Errorf("%d writes are remembered, want only the one that the cache has not seen", got)
	}
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
