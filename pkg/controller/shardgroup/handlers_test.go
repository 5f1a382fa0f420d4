// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

func TestHandlersEnqueueTheShardGroup(t *testing.T) {
	with := func(change func(*v1beta1.NstanceShardGroup)) *v1beta1.NstanceShardGroup {
		object := newObject()
		change(object)
		return object
	}
	tests := map[string]struct {
		change func(*harness)
		want   []string
	}{
		"a new object, at once": {func(h *harness) { h.controller.shardGroupChanged(nil, newObject()) }, []string{"workers--a at 0s"}},
		"a new spec, at once": {func(h *harness) {
			h.controller.shardGroupChanged(newObject(), with(func(g *v1beta1.NstanceShardGroup) { g.Generation++ }))
		}, []string{"workers--a at 0s"}},
		"a deletion, at once": {func(h *harness) {
			h.controller.shardGroupChanged(newObject(), deleting(newObject()))
		}, []string{"workers--a at 0s"}},
		"a deleted object": {func(h *harness) { h.controller.shardGroupChanged(newObject(), nil) }, []string{"workers--a at 0s"}},
		"a new status, which is our own": {func(h *harness) {
			h.controller.shardGroupChanged(newObject(), with(func(g *v1beta1.NstanceShardGroup) { g.ResourceVersion = "another" }))
		}, nil},
		"a resync": {func(h *harness) {
			h.controller.shardGroupChanged(newObject(), newObject())
		}, []string{"workers--a at 0s"}},
		"changes of instances, batched": {func(h *harness) {
			for range 10 {
				h.Fake.NotifyGroup("a", "workers")
			}
		}, []string{"workers--a at 1s"}},
		"changes of drains, batched": {func(h *harness) {
			for range 10 {
				h.controller.drainsChanged("a", "workers", "i-1")
			}
			h.Fake.NotifyGroup("a", "workers")
		}, []string{"workers--a at 1s"}},
		"a shard that became reachable, at once": {func(h *harness) { h.controller.shardChanged("a") }, []string{"workers--a at 0s"}},
		"a shard that became unreachable, after a grace period": {func(h *harness) {
			h.a().Reachable = false
			h.controller.shardChanged("a")
		}, []string{"workers--a at 5s"}},
		"another shard": {func(h *harness) { h.controller.shardChanged("b") }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newObject())
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var enqueued []string
				h.controller.queue = controller.NewQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
					enqueued = append(enqueued, fmt.Sprintf("%s at %s", key.Name, time.Since(start)))
					return 0, nil
				})
				test.change(h)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				h.controller.queue.Run(ctx, 1)
				if !slices.Equal(enqueued, test.want) {
					t.Errorf("enqueued %q, want %q", enqueued, test.want)
				}
			})
		})
	}
}
