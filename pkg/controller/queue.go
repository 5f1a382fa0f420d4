// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controller has the parts of a controller that all operators share: the queue that
// calls the sync function, event handlers and indexes of informers, tracking of writes that
// the caches do not show yet, conditions and events.
package controller

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// A failed sync is retried after a delay that doubles from firstRetry to lastRetry. lastRetry
// is short, so that the objects of a shard do not wait for minutes after the shard has
// recovered. Each delay is up to retryJitter longer, so that keys that failed together are not
// retried together.
const (
	firstRetry  = 50 * time.Millisecond
	lastRetry   = 20 * time.Second
	retryJitter = 0.2
)

// jittered adds jitter to the delays of a rate limiter.
type jittered[Key comparable] struct {
	workqueue.TypedRateLimiter[Key]
}

func (l jittered[Key]) When(key Key) time.Duration {
	return wait.Jitter(l.TypedRateLimiter.When(key), retryJitter)
}

// BatchPeriod is the delay between a change that is not urgent, such as one more running
// instance, and its sync. Changes of many instances within it cost one sync, and so one
// write.
const BatchPeriod = time.Second

// SyncFunc brings the object of key into the desired state, independent of earlier
// syncs. When requeue is positive and err nil, the key is synced again after
// that time; an error is retried with growing delays.
type SyncFunc[Key comparable] func(ctx context.Context, key Key) (requeue time.Duration, err error)

// Queue contains the keys to sync. It contains a key at most once, and two workers never sync
// the same key at a time. Urgent keys are synced before all others (AddUrgent).
type Queue[Key comparable] struct {
	name string
	sync SyncFunc[Key]
	// partOf returns the part of a key; nil for a queue of one part.
	partOf func(Key) string

	mu    sync.Mutex
	parts map[string]part[Key]
	// start starts the workers of a part; nil while Run is not running.
	start func(part[Key])
	// seed returns the keys with which Run begins; nil if it begins with the keys that were
	// added before.
	seed func() []Key
	// stopped is true after Run.
	stopped bool
	// syncing are the keys that workers sync now. A key whose part changes may be in two
	// parts.
	syncing map[Key]struct{}
	// urgent are the keys that are urgent when they are synced next.
	urgent *urgency[Key]
}

// part is the queue of the keys that share workers.
type part[Key comparable] = workqueue.TypedRateLimitingInterface[Key]

// NewQueue returns a queue. name is the label of its metrics and of its log lines.
func NewQueue[Key comparable](name string, sync SyncFunc[Key]) *Queue[Key] {
	return &Queue[Key]{name: name, sync: sync, parts: map[string]part[Key]{}, syncing: map[Key]struct{}{}, urgent: &urgency[Key]{}}
}

// NewShardQueue returns a queue with separate workers for each shard, so that calls to a shard
// that does not respond delay no keys of other shards. shardOf returns the shard of a key,
// empty for a key without a shard; known reports whether a shard is configured. The keys of other
// shards, which any name of an object can invent, have common workers. Neither may block.
func NewShardQueue[Key comparable](name string, sync SyncFunc[Key], shardOf func(Key) string, known func(shard string) bool) *Queue[Key] {
	q := NewQueue(name, sync)
	q.partOf = func(key Key) string {
		if shard := shardOf(key); known(shard) {
			return shard
		}
		return ""
	}
	return q
}

// SeedWith sets a function that returns the keys with which Run begins: all keys that may need
// a sync. Keys that are added before Run are dropped then, so that the queue of a standby does
// not collect the keys of all objects that ever existed. Without a seed they are kept.
func (q *Queue[Key]) SeedWith(seed func() []Key) { q.seed = seed }

// Add enqueues key.
func (q *Queue[Key]) Add(key Key) {
	if q.accepts() {
		q.part(key).Add(key)
	}
}

// AddUrgent enqueues key before the keys that are not urgent: for what a user has changed, which must
// not wait for the reports of thousands of other objects, such as all objects of a shard that is
// lost. A key stays urgent until a sync has succeeded, without a requeue within maxStaleRetry.
func (q *Queue[Key]) AddUrgent(key Key) {
	if q.accepts() {
		q.urgent.set(key)
		q.part(key).Add(key)
	}
}

// AddAfter enqueues key after delay. If a key has several delays, the shortest counts.
func (q *Queue[Key]) AddAfter(key Key, delay time.Duration) {
	if q.accepts() {
		q.part(key).AddAfter(key, delay)
	}
}

// Len returns the number of keys that are waiting for a worker.
func (q *Queue[Key]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	length := 0
	for _, part := range q.parts {
		length += part.Len()
	}
	return length
}

// accepts reports whether keys are kept. If it drops a key, the seed will contain it, because
// the seed is read from the caches that already have the change.
func (q *Queue[Key]) accepts() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.seed == nil || q.start != nil
}

// part returns the part of a key. A new part gets workers if Run is running.
func (q *Queue[Key]) part(key Key) part[Key] {
	var name string
	if q.partOf != nil {
		name = q.partOf(key)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	p, ok := q.parts[name]
	if !ok {
		limiter := jittered[Key]{workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry)}
		p = workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
			workqueue.TypedRateLimitingQueueConfig[Key]{Name: q.name, DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(
				workqueue.TypedDelayingQueueConfig[Key]{Name: q.name, Queue: workqueue.NewTypedWithConfig(
					workqueue.TypedQueueConfig[Key]{Name: q.name, Queue: &classes[Key]{urgent: q.urgent}})})})
		q.parts[name] = p
		switch {
		case q.stopped:
			p.ShutDown()
		case q.start != nil:
			q.start(p)
		}
	}
	return p
}

// Run syncs keys with this number of workers for each part until ctx is done, and returns when
// the last sync has returned.
func (q *Queue[Key]) Run(ctx context.Context, workers int) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "controller", q.name)
	ctx = klog.NewContext(ctx, logger)
	logger.Info("Starting workers", "workers", workers)

	var wg sync.WaitGroup
	q.mu.Lock()
	q.start = func(p part[Key]) {
		for range workers {
			wg.Go(func() {
				for q.next(ctx, p) {
				}
			})
		}
	}
	for _, p := range q.parts {
		q.start(p)
	}
	q.mu.Unlock()
	if q.seed != nil {
		for _, key := range q.seed() {
			q.Add(key)
		}
	}

	<-ctx.Done()
	q.mu.Lock()
	q.stopped = true
	for _, p := range q.parts {
		p.ShutDown()
	}
	q.mu.Unlock()
	wg.Wait()
	logger.Info("Workers stopped")
}

// DropShard ends the workers of a shard that is no longer known. Keys that wait for a time are
// dropped with them, so the caller enqueues all keys of the shard afterwards.
func (q *Queue[Key]) DropShard(shard string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p, ok := q.parts[shard]; ok {
		p.ShutDown()
		delete(q.parts, shard)
	}
}

// next syncs the next key of a part, and adds it again to the part to which it belongs then.
func (q *Queue[Key]) next(ctx context.Context, p part[Key]) bool {
	key, shutdown := p.Get()
	if shutdown || ctx.Err() != nil {
		return false
	}
	defer p.Done(key)
	if !q.begin(key) {
		q.part(key).AddAfter(key, StaleRetry)
		return true
	}
	defer q.end(key)
	wasUrgent := q.urgent.take(key)
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "object", key)
	requeue, panicked, err := q.call(klog.NewContext(ctx, logger), key)
	if wasUrgent && (panicked || err != nil || requeue > 0 && requeue <= maxStaleRetry) {
		q.urgent.set(key)
	}
	switch {
	case panicked:
		q.part(key).AddAfter(key, lastRetry)
	case ctx.Err() != nil:
		// The sync was canceled. The next leader starts with every key.
	case apierrors.IsConflict(err):
		logger.V(4).Info("Object changed meanwhile, syncing again", "err", err)
		q.part(key).AddRateLimited(key)
	case err != nil:
		utilruntime.HandleErrorWithContext(klog.NewContext(ctx, logger), err, "Sync failed", "retries", p.NumRequeues(key))
		q.part(key).AddRateLimited(key)
	default:
		p.Forget(key)
		if requeue > 0 {
			q.part(key).AddAfter(key, requeue)
		}
	}
	return true
}

// call syncs key, and reports whether the sync panicked. An object that makes a sync panic
// must not end the process, and then the process of the next leader, which syncs it too.
func (q *Queue[Key]) call(ctx context.Context, key Key) (requeue time.Duration, panicked bool, err error) {
	start, result := time.Now(), syncSucceeded
	defer func() {
		if cause := recover(); cause != nil {
			panicked, result = true, syncPanicked
			SyncPanics.WithLabelValues(q.name).Inc()
			klog.FromContext(ctx).Error(nil, "Sync panicked", "panic", cause, "stack", string(debug.Stack()))
		}
		SyncDuration.WithLabelValues(q.name, result).Observe(time.Since(start).Seconds())
	}()
	if requeue, err = q.sync(ctx, key); err != nil {
		result = syncFailed
	}
	return requeue, false, err
}

// begin marks key as being synced, unless another worker syncs it.
func (q *Queue[Key]) begin(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, busy := q.syncing[key]; busy {
		return false
	}
	q.syncing[key] = struct{}{}
	return true
}

func (q *Queue[Key]) end(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.syncing, key)
}

// Values of the label result.
const (
	syncSucceeded = "success"
	syncFailed    = "error"
	syncPanicked  = "panic"
)

var (
	// SyncPanics counts the syncs that panicked. The queue retries them after lastRetry.
	SyncPanics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "controller_sync_panics_total",
		Help: "Syncs that panicked, by controller; the object is synced again.",
	}, []string{"controller"})
	// SyncDuration measures syncs. Each program registers it once (daemon.NewMetricsHandler).
	SyncDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "controller_sync_duration_seconds",
		Help:    "Duration of one sync of one key, by controller and result: success, error or panic.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
	}, []string{"controller", "result"})
)
