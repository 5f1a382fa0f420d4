// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
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
			for _, annotation := range []string{v1beta1.AnnotationConfirmOverwrite, v1beta1.AnnotationConfirmAbandon} {
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

// The handlers of a standby are called for as long as another process leads.
func TestStandbyCollectsNoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newObject())
		for i := range 100 {
			deleted := newObject()
			deleted.Name = fmt.Sprintf("former-%d--a", i)
			h.controller.shardGroupChanged(deleted, nil)
			h.Fake.NotifyGroup("a", fmt.Sprintf("former-%d", i))
		}
		// A sync of an object that does not exist drops its state.
		former := controllertest.Key("former-0--a")
		h.controller.setRejection(former, &rejection{})
		assert.Zero(t, h.controller.queue.Len(), "keys of a standby")

		ctx, cancel := context.WithTimeout(h.Ctx, time.Minute)
		defer cancel()
		h.controller.Run(ctx)
		assert.NotNil(t, h.controller.rejection(former), "a dropped key was synced")
		assert.Contains(t, h.Fake.Calls(), "upsert workers on a with size 3", "a new leader syncs every shard group")
	})
}

// 5 of 50 shards reply after 8 s, and 5 do not reply at all. Calls to the other shards are not
// delayed.
func TestSlowShardsDelayNoOther(t *testing.T) {
	const (
		shards, pools = 50, 6
		normal        = 20 * time.Millisecond
	)
	duration := func(id int) time.Duration {
		switch {
		case id < 5:
			return 8 * time.Second
		case id < 10:
			return connpool.CallTimeout
		}
		return normal
	}
	with := p99(t, shards, pools, duration)
	without := p99(t, shards, pools, func(int) time.Duration { return normal })
	t.Logf("p99 of the time until a call is made is %s, and %s without slow shards", with, without)
	assert.LessOrEqual(t, with.Seconds(), 1.5*without.Seconds())
}

// p99 returns the time within which 99 % of the groups on shards from the tenth on are sent,
// when the groups of all shards change at once.
func p99(t *testing.T, shards, pools int, duration func(id int) time.Duration) time.Duration {
	t.Helper()
	var latencies []time.Duration
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		var objects []runtime.Object
		for id := range shards {
			ids = append(ids, fmt.Sprintf("shard-%d", id))
			for pool := range pools {
				name := fmt.Sprintf("pool-%d", pool)
				object := newObject()
				object.UID = types.UID(fmt.Sprint(name, "-", id))
				object.Name = v1beta1.ShardGroupName(name, ids[id])
				object.Spec.Group, object.Spec.Shard = v1beta1.Identifier(name), v1beta1.Identifier(ids[id])
				objects = append(objects, object)
			}
		}
		h := newHarnessOf(t, func(h *harness) {
			h.Fake = shardtest.New(ids...)
			h.Shards, h.NamedShards, h.ShardClient, h.Groups = h.Fake, h.Fake, h.Fake, h.Fake.Groups()
		}, objects...)
		start := time.Now()
		var mu sync.Mutex
		// A call is "upsert GROUP on SHARD with size SIZE".
		h.Fake.OnCall = func(call string) {
			id := slices.Index(ids, strings.Fields(call)[3])
			time.Sleep(duration(id))
			mu.Lock()
			defer mu.Unlock()
			if id >= 10 {
				latencies = append(latencies, time.Since(start))
			}
		}
		ctx, cancel := context.WithTimeout(h.Ctx, time.Minute)
		defer cancel()
		for _, object := range objects {
			h.controller.shardGroupChanged(nil, object.(*v1beta1.NstanceShardGroup))
		}
		h.controller.Run(ctx)
	})
	require.GreaterOrEqual(t, len(latencies), (shards-10)*pools)
	slices.Sort(latencies)
	return latencies[len(latencies)*99/100]
}
