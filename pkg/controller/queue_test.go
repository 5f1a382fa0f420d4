// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

var workers = cache.NewObjectName("default", "workers")

// TestMain keeps only the first error handler of apimachinery, which logs. The second delays
// errors by the real time since the last error, which is wrong in a test with a fake clock.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	m.Run()
}

// journal has a sync function that records the times of its calls.
type journal struct {
	mu    sync.Mutex
	start time.Time
	calls []call
	// answer returns the result of the nth call, from 0.
	answer func(n int) (time.Duration, error)
}

type call struct {
	key cache.ObjectName
	at  time.Duration
}

func (j *journal) sync(_ context.Context, key cache.ObjectName) (time.Duration, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := len(j.calls)
	j.calls = append(j.calls, call{key, time.Since(j.start)})
	return j.answer(n)
}

// times returns the times of the calls since the start.
func (j *journal) times() []time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	var times []time.Duration
	for _, call := range j.calls {
		times = append(times, call.at)
	}
	return times
}

// runQueue runs a queue with this sync function for d of the bubble's time, calls use at its
// start, and returns when its workers have stopped.
func runQueue(t *testing.T, sync SyncFunc[cache.ObjectName], d time.Duration, use func(*Queue[cache.ObjectName])) {
	t.Helper()
	ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())), d)
	defer cancel()
	queue := NewQueue("test", sync)
	use(queue)
	queue.Run(ctx, 2)
}

// expectTimes compares times of syncs. The time between two syncs may be longer by the jitter
// of retries.
func expectTimes(t *testing.T, got, want []time.Duration) {
	t.Helper()
	require.Len(t, got, len(want), "%v", got)
	var last, lastWanted time.Duration
	for i := range want {
		gap, wanted := got[i]-last, want[i]-lastWanted
		assert.GreaterOrEqual(t, gap, wanted, "time before sync %d of %v", i, got)
		assert.LessOrEqual(t, gap, time.Duration(float64(wanted)*(1+retryJitter)), "time before sync %d of %v", i, got)
		last, lastWanted = got[i], want[i]
	}
}

// Keys that fail together, such as the keys of a disconnected shard, are retried at different
// times.
func TestQueueSpreadsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 20
		var mu sync.Mutex
		retried := map[time.Time]int{}
		seen := map[cache.ObjectName]bool{}
		runQueue(t, func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			mu.Lock()
			defer mu.Unlock()
			if !seen[key] {
				seen[key] = true
				return 0, errors.New("failed")
			}
			retried[time.Now()]++
			return 0, nil
		}, time.Minute, func(q *Queue[cache.ObjectName]) {
			for n := range keys {
				q.Add(cache.NewObjectName("default", fmt.Sprint(n)))
			}
		})
		assert.Greater(t, len(retried), keys/2, "different times of the retries")
	})
}

func TestQueueSchedule(t *testing.T) {
	failed := errors.New("failed")
	const ms = time.Millisecond
	tests := map[string]struct {
		answer func(n int) (time.Duration, error)
		use    func(*Queue[cache.ObjectName])
		d      time.Duration
		want   []time.Duration
	}{
		"a failed sync is retried after delays that double up to the longest": {
			answer: func(n int) (time.Duration, error) {
				if n < 11 {
					return 0, failed
				}
				return 0, nil
			},
			d: 2 * time.Minute,
			want: []time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 3150 * ms, 6350 * ms, 12750 * ms,
				25550 * ms, 45550 * ms, 65550 * ms},
		},
		"a conflict is retried as well": {
			answer: func(n int) (time.Duration, error) {
				if n == 0 {
					return 0, apierrors.NewConflict(schema.GroupResource{}, "workers", failed)
				}
				return 0, nil
			},
			d:    time.Minute,
			want: []time.Duration{0, 50 * ms},
		},
		"a success forgets earlier failures": {
			answer: func(n int) (time.Duration, error) {
				switch n {
				case 0, 1, 3:
					return 0, failed
				case 2:
					return time.Second, nil
				default:
					return 0, nil
				}
			},
			d:    time.Minute,
			want: []time.Duration{0, 50 * ms, 150 * ms, 1150 * ms, 1200 * ms},
		},
		"a sync is repeated after the time it asks for": {
			answer: func(int) (time.Duration, error) { return 10 * time.Second, nil },
			d:      35 * time.Second,
			want:   []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second},
		},
		"an error counts more than the time it comes with": {
			answer: func(n int) (time.Duration, error) {
				if n == 0 {
					return 10 * time.Second, failed
				}
				return 0, nil
			},
			d:    time.Minute,
			want: []time.Duration{0, 50 * ms},
		},
		"without news nothing is repeated": {
			answer: func(int) (time.Duration, error) { return 0, nil },
			d:      time.Hour,
			want:   []time.Duration{0},
		},
		"of several delays the shortest counts, and once": {
			answer: func(int) (time.Duration, error) { return 0, nil },
			use: func(q *Queue[cache.ObjectName]) {
				q.AddAfter(workers, 3*time.Second)
				q.AddAfter(workers, time.Second)
				q.AddAfter(workers, 2*time.Second)
			},
			d:    time.Hour,
			want: []time.Duration{time.Second},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journal{start: time.Now(), answer: test.answer}
				use := test.use
				if use == nil {
					use = func(q *Queue[cache.ObjectName]) { q.Add(workers) }
				}
				runQueue(t, j.sync, test.d, use)
				expectTimes(t, j.times(), test.want)
			})
		})
	}
}

func TestQueueFailuresOfOneKeyDoNotDelayAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := cache.NewObjectName("default", "other")
		j := &journal{start: time.Now()}
		runQueue(t, func(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
			if key == workers {
				return 0, errors.New("failed")
			}
			return j.sync(ctx, key)
		}, time.Minute, func(q *Queue[cache.ObjectName]) {
			j.answer = func(n int) (time.Duration, error) {
				if n == 0 {
					return 0, errors.New("failed once")
				}
				return 0, nil
			}
			q.Add(workers)
			q.AddAfter(other, 30*time.Second)
		})
		expectTimes(t, j.times(), []time.Duration{30 * time.Second, 30*time.Second + firstRetry})
	})
}

func TestQueueSyncsAKeyWithOneWorkerAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var active, most, syncs int
		release := make(chan struct{})
		queue := NewQueue("test", func(context.Context, cache.ObjectName) (time.Duration, error) {
			mu.Lock()
			active++
			syncs++
			most = max(most, active)
			mu.Unlock()
			<-release
			mu.Lock()
			active--
			mu.Unlock()
			return 0, nil
		})
		done := make(chan struct{})
		go func() { defer close(done); queue.Run(ctx, 4) }()
		for range 3 {
			queue.Add(workers)
			synctest.Wait()
		}
		close(release)
		synctest.Wait()
		// The first Add causes one sync, and the two later Adds together another.
		if most != 1 || syncs != 2 {
			t.Errorf("%d syncs of one key, up to %d at a time; want 2, and 1", syncs, most)
		}
		cancel()
		<-done
	})
}

func TestQueueRunWaitsForItsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		var syncs int
		queue := NewQueue("test", func(ctx context.Context, _ cache.ObjectName) (time.Duration, error) {
			syncs++
			<-release
			return 0, ctx.Err()
		})
		done := make(chan struct{})
		go func() { defer close(done); queue.Run(ctx, 1) }()
		queue.Add(workers)
		queue.Add(cache.NewObjectName("default", "waiting"))
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-done:
			t.Error("Run has returned while a sync was going on")
		default:
		}
		close(release)
		<-done
		if syncs != 1 {
			t.Errorf("%d syncs, want only the one that had begun before the end", syncs)
		}
	})
}

// shardOfName returns the part of a name before the dash.
func shardOfName(key cache.ObjectName) string {
	shard, _, _ := strings.Cut(key.Name, "-")
	return shard
}

func anyShard(string) bool { return true }

// A shard has workers of its own while it is configured. A key that one of them syncs when the shard
// is removed is retried by the common workers.
func TestWorkersOfARemovedShardEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
		var known atomic.Bool
		known.Store(true)
		released := make(chan struct{})
		var mu sync.Mutex
		calls := map[string]int{}
		count := func(name string) int {
			mu.Lock()
			defer mu.Unlock()
			calls[name]++
			return calls[name]
		}
		queue := NewShardQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			if count(key.Name) == 1 && key.Name == "a-busy" {
				<-released
				return 0, errors.New("the shard is away")
			}
			return 0, nil
		}, shardOfName, func(shard string) bool { return shard == "a" && known.Load() })
		done := make(chan struct{})
		go func() { defer close(done); queue.Run(ctx, 1) }()
		busy, waiting := cache.NewObjectName("default", "a-busy"), cache.NewObjectName("default", "a-waiting")
		queue.Add(busy)
		synctest.Wait()
		queue.AddAfter(waiting, time.Hour)
		for _, invented := range []string{"x-1", "y-1", "z-1"} {
			queue.Add(cache.NewObjectName("default", invented))
		}
		synctest.Wait()
		assert.Len(t, queue.parts, 2, "parts with a configured shard and invented names")

		known.Store(false)
		queue.DropShard("a")
		queue.DropShard("never-known")
		queue.Add(waiting)
		queue.Add(busy)
		synctest.Wait()
		mu.Lock()
		assert.Equal(t, map[string]int{"a-busy": 1, "a-waiting": 1, "x-1": 1, "y-1": 1, "z-1": 1}, calls)
		mu.Unlock()
		close(released)
		time.Sleep(time.Minute)
		assert.Len(t, queue.parts, 1, "parts after the removal")
		cancel()
		<-done
		assert.GreaterOrEqual(t, calls["a-busy"], 2, "syncs of the key that failed after the removal")
	})
}

func TestShardThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
		released := make(chan struct{})
		var mu sync.Mutex
		synced := map[string]int{}
		queue := NewShardQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			if shardOfName(key) == "slow" {
				<-released
			}
			mu.Lock()
			defer mu.Unlock()
			synced[key.Name]++
			return 0, nil
		}, shardOfName, anyShard)
		add := func(names ...string) {
			for _, name := range names {
				queue.Add(cache.NewObjectName("default", name))
			}
		}
		add("slow-1", "slow-2", "slow-3", "fast-1")
		done := make(chan struct{})
		go func() { defer close(done); queue.Run(ctx, 2) }()
		synctest.Wait()
		// A shard that is added later has workers too.
		add("slow-4", "fast-2", "new-1")
		synctest.Wait()
		mu.Lock()
		assert.Equal(t, map[string]int{"fast-1": 1, "fast-2": 1, "new-1": 1}, synced)
		mu.Unlock()

		close(released)
		synctest.Wait()
		mu.Lock()
		assert.Len(t, synced, 7)
		mu.Unlock()
		cancel()
		<-done
		// A shard that is added after the end has no workers.
		add("late-1")
		synctest.Wait()
		assert.NotContains(t, synced, "late-1")
	})
}

// If the shard of a key changes during a sync, two workers do not sync it at once.
func TestKeyThatChangesItsShardIsSyncedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
		var shard atomic.Value
		shard.Store("")
		var running, most, calls atomic.Int64
		queue := NewShardQueue("test", func(context.Context, cache.ObjectName) (time.Duration, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			calls.Add(1)
			time.Sleep(time.Second)
			return 0, nil
		}, func(cache.ObjectName) string { return shard.Load().(string) }, anyShard)
		done := make(chan struct{})
		go func() { defer close(done); queue.Run(ctx, 2) }()
		queue.Add(workers)
		synctest.Wait()
		shard.Store("a")
		queue.Add(workers)
		time.Sleep(10 * time.Second)
		assert.EqualValues(t, 1, most.Load(), "syncs at once")
		assert.EqualValues(t, 2, calls.Load())
		cancel()
		<-done
	})
}

// The handlers of a standby are called for weeks, for objects that are created and deleted.
func TestQueueOfAStandbyHasNoKeys(t *testing.T) {
	for name, newQueue := range map[string]func(SyncFunc[cache.ObjectName]) *Queue[cache.ObjectName]{
		"one part": func(sync SyncFunc[cache.ObjectName]) *Queue[cache.ObjectName] { return NewQueue("test", sync) },
		"a part for each shard": func(sync SyncFunc[cache.ObjectName]) *Queue[cache.ObjectName] {
			return NewShardQueue("test", sync, shardOfName, anyShard)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journal{start: time.Now(), answer: func(int) (time.Duration, error) { return 0, nil }}
				queue := newQueue(j.sync)
				seed := []cache.ObjectName{workers, cache.NewObjectName("default", "a-1")}
				queue.SeedWith(func() []cache.ObjectName { return seed })
				for i := range 10_000 {
					key := cache.NewObjectName("default", fmt.Sprintf("pod-%d", i))
					queue.Add(key)
					queue.AddAfter(key, time.Second)
				}
				assert.Zero(t, queue.Len(), "keys before Run")

				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
				done := make(chan struct{})
				go func() { defer close(done); queue.Run(ctx, 1) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				var synced []cache.ObjectName
				for _, call := range j.calls {
					synced = append(synced, call.key)
				}
				assert.ElementsMatch(t, seed, synced)

				// The leader accepts keys.
				queue.Add(workers)
				synctest.Wait()
				assert.Len(t, j.calls, 3)
				cancel()
				<-done
			})
		})
	}
}

// An object that makes a sync panic must not end the process, and then the process of the
// standby.
func TestQueueSurvivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := cache.NewObjectName("default", "other")
		j := &journal{start: time.Now(), answer: func(int) (time.Duration, error) { return 0, nil }}
		var panicked []time.Duration
		SyncPanics.Reset()
		runQueue(t, func(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
			if key == workers {
				panicked = append(panicked, time.Since(j.start))
				panic("index out of range")
			}
			return j.sync(ctx, key)
		}, 59*time.Second, func(q *Queue[cache.ObjectName]) {
			q.Add(workers)
			q.AddAfter(other, time.Second)
			q.AddAfter(other, 2*time.Second)
		})
		assert.Equal(t, []time.Duration{time.Second}, j.times(), "syncs of the other key")
		assert.Equal(t, []time.Duration{0, lastRetry, 2 * lastRetry}, panicked, "syncs of the key that panics")
		registry := prometheus.NewRegistry()
		registry.MustRegister(SyncPanics)
		families, err := registry.Gather()
		require.NoError(t, err)
		require.Len(t, families, 1)
		assert.InDelta(t, 3, families[0].GetMetric()[0].GetCounter().GetValue(), 0)
	})
}

func TestSyncsAreMeasuredByResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		SyncDuration.Reset()
		syncs := 0
		runQueue(t, func(context.Context, cache.ObjectName) (time.Duration, error) {
			syncs++
			<-time.After(time.Duration(syncs) * time.Second)
			switch syncs {
			case 1:
				return 0, errors.New("not yet")
			case 2:
				panic("index out of range")
			}
			return 0, nil
		}, time.Minute, func(q *Queue[cache.ObjectName]) { q.Add(workers) })

		registry := prometheus.NewRegistry()
		registry.MustRegister(SyncDuration)
		families, err := registry.Gather()
		require.NoError(t, err)
		require.Len(t, families, 1)
		got := map[string]float64{}
		for _, metric := range families[0].GetMetric() {
			got[metric.GetLabel()[1].GetValue()] = metric.GetHistogram().GetSampleSum()
		}
		assert.Equal(t, map[string]float64{"error": 1, "panic": 2, "success": 3}, got, "seconds")
	})
}
