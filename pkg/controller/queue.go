// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controller has what all controllers share: dependencies, the queue that calls
// the sync function, and the handler that turns informer changes into keys.
package controller

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// A failed sync is retried after a delay that doubles between these two. The
// longest keeps objects of a shard that came back from waiting for minutes.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 20 * time.Second
)

// BatchPeriod is the delay between a change that is not urgent, such as one more running
// instance, and its sync. Changes of many instances within it cost one sync, and so one
// write.
const BatchPeriod = time.Second

// LostGrace is how long a shard may be disconnected before its objects report it. A
// server that restarts is reachable again within it, and causes no writes.
const LostGrace = 5 * time.Second

// SyncFunc brings the object of key into the desired state, independent of earlier
// syncs. When requeue is positive and err nil, the key is synced again after
// that time; an error is retried with growing delays.
type SyncFunc[Key comparable] func(ctx context.Context, key Key) (requeue time.Duration, err error)

// Queue contains the keys to sync. A key is in it at most once, and is never synced by
// two workers at a time.
type Queue[Key comparable] struct {
	name  string
	queue workqueue.TypedRateLimitingInterface[Key]
	sync  SyncFunc[Key]
}

// NewQueue returns a queue whose metrics and logs carry name.
func NewQueue[Key comparable](name string, sync SyncFunc[Key]) *Queue[Key] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry)
	return &Queue[Key]{
		name: name,
		sync: sync,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
			workqueue.TypedRateLimitingQueueConfig[Key]{Name: name}),
	}
}

// Add enqueues key.
func (q *Queue[Key]) Add(key Key) { q.queue.Add(key) }

// AddAfter enqueues key after delay. Of several delays for one key the shortest counts.
func (q *Queue[Key]) AddAfter(key Key, delay time.Duration) { q.queue.AddAfter(key, delay) }

// Run syncs keys until ctx is done, and returns when the last sync has returned.
func (q *Queue[Key]) Run(ctx context.Context, workers int) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "controller", q.name)
	ctx = klog.NewContext(ctx, logger)
	logger.Info("Starting workers", "workers", workers)

	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for q.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	q.queue.ShutDown()
	wg.Wait()
	logger.Info("Workers stopped")
}

func (q *Queue[Key]) next(ctx context.Context) bool {
	key, shutdown := q.queue.Get()
	if shutdown || ctx.Err() != nil {
		return false
	}
	defer q.queue.Done(key)
	defer utilruntime.HandleCrashWithContext(ctx)

	logger := klog.LoggerWithValues(klog.FromContext(ctx), "object", key)
	requeue, err := q.sync(klog.NewContext(ctx, logger), key)
	switch {
	case ctx.Err() != nil:
		// The sync was canceled. The next leader starts with every key.
	case apierrors.IsConflict(err):
		logger.V(4).Info("Object changed meanwhile, syncing again", "err", err)
		q.queue.AddRateLimited(key)
	case err != nil:
		utilruntime.HandleErrorWithContext(klog.NewContext(ctx, logger), err, "Sync failed", "retries", q.queue.NumRequeues(key))
		q.queue.AddRateLimited(key)
	default:
		q.queue.Forget(key)
		if requeue > 0 {
			q.queue.AddAfter(key, requeue)
		}
	}
	return true
}
