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
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// Of 50 shards 5 reply after 8 s, and 5 do not reply at all. The calls to the others are
// made as soon as without them.
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

// p99 returns the time within which 99 of 100 groups of the shards from the tenth on have
// been sent, when the groups of all shards change at once.
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
