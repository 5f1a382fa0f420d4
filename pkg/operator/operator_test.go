// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"nstance.dev/operator/pkg/operator/internal/statemetrics"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/informer"
)

// slowController's Run returns when ctx is done and release is closed.
type slowController struct {
	leaderController
	stopping, release chan struct{}
}

func (c slowController) Run(ctx context.Context) {
	<-ctx.Done()
	close(c.stopping)
	<-c.release
}

// A controller must be able to finish its calls, so the connections are closed after it.
func TestWorkStopsControllersBeforeConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		configuration, _, ctx := startConfiguration(t)
		ctx, cancel := context.WithCancel(ctx)
		slow := slowController{stopping: make(chan struct{}), release: make(chan struct{})}
		c := &components{
			configuration: configuration, connections: configuration.connections,
			groups: informer.NewGroups(informer.Options{}), notices: informer.NewNotices(),
			controllers: []leaderController{slow},
			metrics:     prometheus.NewRegistry(), state: statemetrics.New(statemetrics.Sources{}),
		}
		done := make(chan error, 1)
		go func() { done <- c.work(ctx) }()
		cancel()
		<-slow.stopping
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("work has returned %v while a controller was running", err)
		default:
		}
		// Only connections that still run try to connect to a new shard.
		tried := make(chan string, 10)
		c.groups.AddHandler(shard.GroupHandler{OnShard: func(shard string) { tried <- shard }})
		configuration.connections.Set(map[string]shard.Endpoint{"a": {Operator: "127.0.0.1:1"}})
		if got := <-tried; got != "a" {
			t.Errorf("connected to %q", got)
		}
		close(slow.release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
