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
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	"nstance.dev/operator/pkg/testing/tier"
)

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
