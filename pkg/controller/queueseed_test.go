// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// The handlers of a standby are called for weeks, for objects that come and go.
func TestQueueOfAStandbyHasNoKeys(t *testing.T) {
	for name, newQueue := range map[string]func(SyncFunc[cache.ObjectName]) *Queue[cache.ObjectName]{
		"one part": func(sync SyncFunc[cache.ObjectName]) *Queue[cache.ObjectName] { return NewQueue("test", sync) },
		"a part for each shard": func(sync SyncFunc[cache.ObjectName]) *Queue[cache.ObjectName] {
			return NewShardQueue("test", sync, shardOfName)
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
