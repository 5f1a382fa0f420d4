// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
)

// order records the order in which a queue of 2 workers syncs keys. A sync takes 20 ms.
type order struct {
	mu     sync.Mutex
	synced []string
	// answer returns the result of a sync, nil for success.
	answer func(name string) (time.Duration, error)
}

func (o *order) sync(_ context.Context, key cache.ObjectName) (time.Duration, error) {
	time.Sleep(20 * time.Millisecond)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.synced = append(o.synced, key.Name)
	if o.answer == nil {
		return 0, nil
	}
	return o.answer(key.Name)
}

func named(prefix string, n int) cache.ObjectName {
	return cache.NewObjectName("default", fmt.Sprint(prefix, n))
}

func TestUrgentKeysAreSyncedBeforeThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o order
		runQueue(t, o.sync, time.Hour, func(q *Queue[cache.ObjectName]) {
			for n := range 1000 {
				q.Add(named("rest-", n))
			}
			q.AddUrgent(named("urgent-", 0))
			// A key that waits already.
			q.AddUrgent(named("rest-", 700))
			// A key that is urgent already.
			q.AddUrgent(named("urgent-", 0))
			q.Add(named("urgent-", 0))
		})
		assert.Equal(t, []string{"rest-700", "urgent-0"}, slices.Sorted(slices.Values(o.synced[:2])), "the first syncs")
		assert.Len(t, o.synced, 1001, "each key is synced once")
		last := -1
		for _, name := range o.synced[2:] {
			var n int
			_, err := fmt.Sscanf(name, "rest-%d", &n)
			require.NoError(t, err)
			// Two workers may finish in either order.
			assert.GreaterOrEqual(t, n, last-1, "the others keep their order")
			last = n
		}
	})
}

// An object that changes all the time does not keep all others from being synced.
func TestUrgentKeysDoNotStarveTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o order
		runQueue(t, o.sync, time.Hour, func(q *Queue[cache.ObjectName]) {
			for n := range 20 {
				q.Add(named("rest-", n))
			}
			for n := range 1000 {
				q.AddUrgent(named("urgent-", n))
			}
		})
		last := slices.Index(o.synced, "rest-19")
		assert.InDelta(t, 20*(urgentInARow+1), last, 3, "the last of the 20 others")
	})
}

// A sync that conflicts, fails or waits for the cache has not done what the user wants.
func TestUrgentKeysStayUrgentUntilTheyAreSynced(t *testing.T) {
	for name, answer := range map[string]func() (time.Duration, error){
		"a failed sync":                func() (time.Duration, error) { return 0, errors.New("failed") },
		"a sync that waits for caches": func() (time.Duration, error) { return StaleRetry, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var o order
				tries := 0
				o.answer = func(name string) (time.Duration, error) {
					if name != "urgent-0" {
						return 0, nil
					}
					if tries++; tries > 3 {
						// Longer than maxStaleRetry: the sync has done what the user wants.
						return 6 * time.Second, nil
					}
					return answer()
				}
				runQueue(t, o.sync, 15*time.Second, func(q *Queue[cache.ObjectName]) {
					q.AddUrgent(named("urgent-", 0))
					for n := range 1000 {
						q.Add(named("rest-", n))
					}
				})
				var at []int
				for n, name := range o.synced {
					if name == "urgent-0" {
						at = append(at, n)
					}
				}
				// The delays are 50, 100 and 200 ms and a fifth more at most. 2 workers sync 10 keys each 100 ms.
				require.Len(t, at, 5, "tries")
				assert.Less(t, at[3], 60, "syncs before the fourth try")
				assert.Greater(t, at[4], 1000, "syncs before the last try, which is not urgent")
			})
		})
	}
}

// A sync that panics is tried again after lastRetry.
func TestAnUrgentKeyWhoseSyncPanicsStaysUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o order
		panicked := false
		o.answer = func(name string) (time.Duration, error) {
			if name == "urgent-0" && !panicked {
				panicked = true
				panic("index out of range")
			}
			return 0, nil
		}
		// 2 workers sync 2,000 keys in lastRetry.
		const rest = 4000
		runQueue(t, o.sync, time.Hour, func(q *Queue[cache.ObjectName]) {
			q.AddUrgent(named("urgent-", 0))
			for n := range rest {
				q.Add(named("rest-", n))
			}
		})
		second := len(o.synced) - 1
		for o.synced[second] != "urgent-0" {
			second--
		}
		assert.Positive(t, second, "syncs before the second try")
		assert.Less(t, second, rest, "syncs before the second try")
	})
}
