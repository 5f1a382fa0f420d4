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

func TestWhatWakesAShardGroupWhen(t *testing.T) {
	with := func(change func(*v1beta1.NstanceShardGroup)) *v1beta1.NstanceShardGroup {
		object := newObject()
		change(object)
		return object
	}
	tests := map[string]struct {
		change func(*harness)
		want   []string
	}{
		"a new object, at once": {func(h *harness) { h.controller.changed(nil, newObject()) }, []string{"workers--a at 0s"}},
		"a new spec, at once": {func(h *harness) {
			h.controller.changed(newObject(), with(func(g *v1beta1.NstanceShardGroup) { g.Generation++ }))
		}, []string{"workers--a at 0s"}},
		"a deletion, at once": {func(h *harness) {
			h.controller.changed(newObject(), deleting(newObject()))
		}, []string{"workers--a at 0s"}},
		"an object that is gone": {func(h *harness) { h.controller.changed(newObject(), nil) }, []string{"workers--a at 0s"}},
		"a new status, our own, wakes nothing": {func(h *harness) {
			h.controller.changed(newObject(), with(func(g *v1beta1.NstanceShardGroup) { g.ResourceVersion = "another" }))
		}, nil},
		"a resync": {func(h *harness) {
			h.controller.changed(newObject(), newObject())
		}, []string{"workers--a at 0s"}},
		"news of instances, with whatever follows": {func(h *harness) {
			for range 10 {
				h.controller.GroupChanged("a", "workers")
			}
		}, []string{"workers--a at 1s"}},
		"news of drains, with whatever follows": {func(h *harness) {
			for range 10 {
				h.controller.DrainsChanged("a", "workers")
			}
			h.controller.GroupChanged("a", "workers")
		}, []string{"workers--a at 1s"}},
		"a shard that came, at once": {func(h *harness) { h.controller.ShardChanged("a") }, []string{"workers--a at 0s"}},
		"a shard that went, unless it is back soon": {func(h *harness) {
			h.shard.reachable = false
			h.controller.ShardChanged("a")
		}, []string{"workers--a at 5s"}},
		"another shard wakes nothing": {func(h *harness) { h.controller.ShardChanged("b") }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newObject())
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var woken []string
				h.controller.queue = controller.NewQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
					woken = append(woken, fmt.Sprintf("%s at %s", key.Name, time.Since(start)))
					return 0, nil
				})
				test.change(h)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				h.controller.queue.Run(ctx, 1)
				if !slices.Equal(woken, test.want) {
					t.Errorf("woke %q, want %q", woken, test.want)
				}
			})
		})
	}
}
