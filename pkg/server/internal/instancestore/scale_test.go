// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/testing/runtest"
)

// Size of a large shard.
const (
	manyGroups    = 100
	manyInstances = 10_000
)

// newLargeShard returns a shard with many running instances. It writes the
// files of the storage directly, which is much faster.
func newLargeShard(t testing.TB) *shard {
	t.Helper()
	s := newShard(t, t.TempDir())
	vms := map[string]instance.VM{}
	for n := range manyInstances {
		record := newRecord(t)
		record.Group = fmt.Sprintf("group-%d", n%manyGroups)
		record.CreatedAt = epoch.Add(time.Duration(n) * time.Second)
		record.ProviderID = "kwok:///us-west-2/us-west-2a/" + record.ID
		record.InfraConfigHash = fmt.Sprintf("sha256:%064d", n)
		data, err := json.Marshal(record)
		require.NoError(s.t, err)
		path := filepath.Join(s.dir, "objects", keyOf(t, record))
		require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(s.t, os.WriteFile(path, data, 0o600))
		vms[record.ID] = vmOf(record, instance.Running)
	}
	s.cloud.VMs = vms
	return s
}

func TestLargeShard(t *testing.T) {
	s := newLargeShard(t)
	s.close()
	before := heap()
	s.storage.count()
	start := time.Now()
	s.open(instancestore.Options{})
	t.Logf("without the cache: %v", time.Since(start))
	if diff := cmp.Diff(map[string]int{"List": 1, "Get": manyInstances}, s.storage.count()); diff != "" {
		t.Errorf("calls without the cache (-want +got):\n%s", diff)
	}
	start = time.Now()
	s.restart()
	t.Logf("with the cache: %v", time.Since(start))
	if diff := cmp.Diff(map[string]int{"List": 1}, s.storage.count()); diff != "" {
		t.Errorf("calls with the cache (-want +got):\n%s", diff)
	}
	used := int64(heap()-before) >> 20
	t.Logf("%d instances take %d MiB", manyInstances, used)
	if used > 100 {
		t.Errorf("%d instances take %d MiB, want at most 100", manyInstances, used)
	}

	if keys := s.Keys(); len(keys) != manyGroups {
		t.Errorf("there are %d groups, want %d", len(keys), manyGroups)
	}
	s.cloud.Gets = 0
	key := instance.GroupKey{Tenant: group.Tenant, Group: "group-7"}
	if n := len(s.List(key)); n != manyInstances/manyGroups {
		t.Errorf("the group has %d instances, want %d", n, manyInstances/manyGroups)
	}
	if calls := s.cloud.Gets; calls != manyInstances/manyGroups {
		t.Errorf("listing one group made %d calls of Get, want %d", calls, manyInstances/manyGroups)
	}
	runtime.KeepAlive(s)
}

// heap returns the number of bytes of allocated heap objects.
func heap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func BenchmarkList(b *testing.B) {
	s := newLargeShard(b)
	s.restart()
	key := instance.GroupKey{Tenant: group.Tenant, Group: "group-7"}
	b.ReportAllocs()
	for b.Loop() {
		if len(s.List(key)) != manyInstances/manyGroups {
			b.Fatal("an instance is missing")
		}
	}
}

// The shard is not served before all records are read, and an object storage answers after tens of
// milliseconds: many records are read at the same time.
func TestManyRecordsAreReadAtTheSameTime(t *testing.T) {
	s := newShard(t, t.TempDir())
	for range readersAtOnce {
		s.add()
	}
	s.close()
	s.loseCache()
	var reading sync.WaitGroup
	reading.Add(readersAtOnce)
	s.storage.intervene(func(method, _ string) error {
		if method != "Get" {
			return nil
		}
		// Each read waits until all have begun.
		reading.Done()
		all := make(chan struct{})
		go func() {
			reading.Wait()
			close(all)
		}()
		select {
		case <-all:
			return nil
		case <-time.After(runtest.Timeout):
			return errStorage
		}
	}, nil)
	s.open(instancestore.Options{})
	require.Len(t, s.List(group), readersAtOnce)
}

// readersAtOnce is the number of records that are read at the same time at least.
const readersAtOnce = 64
