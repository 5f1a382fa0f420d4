// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"testing"
	"testing/synctest"

	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/informer"
)

// loop is a controller that ends when it was told to and release is closed.
type loop struct {
	told, release chan struct{}
}

func (l loop) Run(ctx context.Context) {
	<-ctx.Done()
	close(l.told)
	<-l.release
}

// What a controller has begun it must be able to finish: the connections end
// after it.
func TestWorkEndsControllersBeforeConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		configuration, _, ctx := newConfiguration(t)
		ctx, cancel := context.WithCancel(ctx)
		slow := loop{told: make(chan struct{}), release: make(chan struct{})}
		p := &parts{
			configuration: configuration, pool: configuration.pool, groups: informer.NewGroups(), instances: informer.NewInstances(),
			controllers: []runner{slow},
		}
		done := make(chan error, 1)
		go func() { done <- p.work(ctx) }()
		cancel()
		<-slow.told
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("work has returned %v while a controller was running", err)
		default:
		}
		// Only a pool that still runs tries to connect to what is configured now.
		tried := make(chan string, 10)
		p.groups.AddHandler(informer.Handler{OnShard: func(shard string) { tried <- shard }})
		configuration.pool.Set(map[string]shard.Endpoint{"a": {Operator: "127.0.0.1:1"}})
		if got := <-tried; got != "a" {
			t.Errorf("connected to %q", got)
		}
		close(slow.release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
