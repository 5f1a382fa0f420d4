// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
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
		"a decision of an administrator, at once": {func(h *harness) {
			for _, annotation := range []string{v1beta1.AnnotationReplaces, v1beta1.AnnotationAbandonedShard} {
				h.controller.shardGroupChanged(newObject(), with(func(g *v1beta1.NstanceShardGroup) {
					g.ResourceVersion, g.Annotations = "another", map[string]string{annotation: "a/3"}
				}))
			}
		}, []string{"workers--a at 0s"}},
		"a deletion, at once": {func(h *harness) {
			h.controller.shardGroupChanged(newObject(), controllertest.Deleting(newObject()))
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
			enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { test.change(h) })
			if !slices.Equal(enqueued, test.want) {
				t.Errorf("enqueued %q, want %q", enqueued, test.want)
			}
		})
	}
}
