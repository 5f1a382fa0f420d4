// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	"nstance.dev/operator/pkg/testing/tier"
)

// A panic for one group must not stop the server, and then the next leader, which
// reconciles the group too.
func TestPanicAffectsNoOtherGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.CreateRateLimit = time.Second
		s := start(t, c)
		s.run(otherKey, 1)
		panics := 0
		s.cloud.rejectCalls(func(c call) error {
			if c.operation == "create" && c.group == workersKey {
				panics++
				panic("a fault of the provider")
			}
			return nil
		})
		s.scale(workersKey, 3)
		s.scale(otherKey, 3)
		for range 5 {
			s.pass(time.Second)
			s.cloud.settle()
		}
		assert.Len(t, s.cloud.ids(otherKey), 3, "instances of the other group")
		failures := s.takeFailures()
		assert.NotEmpty(t, failures, "reported to operators")
		for _, failed := range failures {
			assert.Equal(t, workersKey, failed.group)
		}

		s.pass(10 * time.Minute)
		assert.Greater(t, panics, 20, "attempts")
		assert.Less(t, panics, 60, "attempts with backoff")
		wantMetrics(t, s.metrics, []string{"nstance_server_reconcile_panics"}, "reconcile_panics_total{} "+fmt.Sprint(panics))

		s.cloud.rejectCalls(nil)
		s.pass(maxBackoff)
		assert.Len(t, s.cloud.ids(workersKey), 3, "the group is reconciled when the fault is mended")
	})
}

// One instance whose deletion panics does not delay the others of its group.
func TestPanicAffectsNoOtherInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 3)
		s.cloud.rejectCalls(func(c call) error {
			if c.id == ids[0] {
				panic("a fault of the provider")
			}
			return nil
		})
		s.scale(workersKey, 0)
		for _, id := range ids {
			s.acknowledge(workersKey, id)
		}
		s.settle()
		assert.Equal(t, ids[:1], s.cloud.ids(workersKey))
	})
}

// Garbage collection reads all groups, at the start and regularly.
func TestPanicOfGarbageCollectionDoesNotStopTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.GarbageCollection.Interval = time.Minute
		s := start(t, c)
		s.remove(otherKey)
		s.stop()
		var fails atomic.Bool
		attempts := 0
		s.unrecorded = func() {
			if fails.Load() {
				attempts++
				panic("a fault of the provider")
			}
		}
		s.lead()
		fails.Store(true)
		s.pass(5 * time.Minute)
		assert.Equal(t, 5, attempts, "attempts")
		fails.Store(false)
		stray := s.addStray(otherKey)
		s.pass(time.Minute)
		s.want("draining " + stray + " scale-down")
	})
}

// Size of a large shard.
const (
	manyGroups   = 100
	manyOfAGroup = 100
)

// countingStorage counts the calls to a storage by operation and group of the
// record.
type countingStorage struct {
	storagetest.Intercepted
	mu    sync.Mutex
	calls map[string]int
}

func (c *countingStorage) count(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
	operation := strings.ToLower(call.Operation)
	switch {
	case call.Operation == "Delete":
		object, _ := c.Store.Get(ctx, call.Key)
		call.Data = object.Data
	case call.Operation == "Replace" && strings.HasPrefix(call.Key, "groups/"):
		operation, call.Data = "replace groups", nil
	}
	var record instance.Record
	_ = json.Unmarshal(call.Data, &record)
	c.mu.Lock()
	c.calls[operation+" "+record.Group]++
	c.mu.Unlock()
	return do(ctx)
}

// take returns the calls since its last call.
func (c *countingStorage) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := maps.Clone(c.calls)
	clear(c.calls)
	return calls
}

// TestScalingOneGroupTouchesOnlyItsInstances counts the calls for changing one
// of many groups: at full size, there are ten thousand instances.
func TestScalingOneGroupTouchesOnlyItsInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := tier.Pick(20, manyGroups)
		s := start(t, newConfig())
		s.stop()
		for n := range count {
			s.config.Groups["default"][fmt.Sprint("group-", n)] = config.Group{Template: "worker", Size: new(int32(manyOfAGroup)), DrainTimeout: new(time.Duration(0))}
		}
		s.populate()
		counter := &countingStorage{calls: map[string]int{}}
		counter.Intercepted = storagetest.Intercepted{Store: s.storage, Intercept: counter.count}
		s.storage = counter
		s.lead()
		s.pass(time.Second)
		want := map[string]int{"list ": 1, "get ": count*manyOfAGroup + 1}
		if diff := cmp.Diff(want, counter.take()); diff != "" {
			t.Errorf("storage calls to start (-want +got):\n%s", diff)
		}
		s.wantCalls()

		key := instance.GroupKey{Tenant: "default", Group: "group-7"}
		s.scale(key, manyOfAGroup+2)
		s.settle()
		s.wantCalls("create default/group-7", "create default/group-7")
		want = map[string]int{"create ": 1, "create group-7": 2, "replace group-7": 2}
		if diff := cmp.Diff(want, counter.take()); diff != "" {
			t.Errorf("storage calls to create two instances (-want +got):\n%s", diff)
		}

		s.scale(key, manyOfAGroup)
		s.settle()
		s.wantCalls("delete default/group-7", "delete default/group-7")
		want = map[string]int{"replace groups ": 1, "delete group-7": 2}
		if diff := cmp.Diff(want, counter.take()); diff != "" {
			t.Errorf("storage calls to delete two instances (-want +got):\n%s", diff)
		}
	})
}

// populate writes the instances of all groups directly, which is much faster.
func (s *server) populate() {
	s.t.Helper()
	wanted, err := groups.Open(s.t.Context(), nil, s.config, s.storage)
	require.NoError(s.t, err)
	for _, key := range wanted.Keys() {
		group, _ := wanted.Get(key)
		for range group.Size {
			id, err := puidv7.New(group.Kind)
			require.NoError(s.t, err)
			record := instance.Record{
				ID: id.String(), Tenant: key.Tenant, Group: key.Group, InfraConfigHash: group.InfraConfigHash,
				CreatedAt: time.Now(), ProviderID: "vm-" + id.String(),
			}
			data, err := json.Marshal(record)
			require.NoError(s.t, err)
			path := filepath.Join(s.objects, storage.InstanceKey("a", key.Tenant, id.StorageKey()))
			require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(s.t, os.WriteFile(path, data, 0o600))
			s.cloud.put(instance.VM{ID: record.ID, ProviderID: record.ProviderID, Group: key, State: instance.Running})
		}
	}
}

// serialStorage returns a storage that serializes writes. The file storage polls for
// its locks by the clock, which stands still in a bubble while a goroutine waits for a
// locked mutex.
func serialStorage(store storage.Store) storage.Store {
	turn := make(chan struct{}, 1)
	return storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
		if call.IsWrite() {
			turn <- struct{}{}
			defer func() { <-turn }()
		}
		return do(ctx)
	}}
}
