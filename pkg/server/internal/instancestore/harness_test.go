// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

const shardID = "us-west-2a"

var (
	epoch = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)
	group = instance.GroupKey{Tenant: "default", Group: "workers"}
)

// shard is the environment of one shard server, with an open store.
type shard struct {
	*instancestore.Store

	t       testing.TB
	dir     string
	storage *probe
	cloud   *cloud
	clock   *clocktesting.FakePassiveClock
	cache   *cache.DB
	// outdated is called by the store.
	outdated func(error)
}

// newShard opens a shard whose storage, cache and cloud are in folder dir.
func newShard(t testing.TB, dir string) *shard {
	t.Helper()
	s := &shard{t: t, dir: dir, clock: clocktesting.NewFakePassiveClock(epoch)}
	objects := filepath.Join(dir, "objects")
	require.NoError(t, os.MkdirAll(objects, 0o700))
	store, err := file.Open(objects)
	require.NoError(t, err)
	s.storage = newProbe(store)
	s.cloud = newCloud(t, filepath.Join(dir, "cloud"))
	t.Cleanup(func() { _ = s.cache.Close() })
	s.open(instancestore.Options{})
	return s
}

// cachePath is the file that may be lost.
func (s *shard) cachePath() string { return filepath.Join(s.dir, "cache.db") }

// tryOpen opens the store after it has filled in the remaining options.
func (s *shard) tryOpen(options instancestore.Options) error {
	s.t.Helper()
	var err error
	s.cache, err = cache.Open(s.t.Context(), s.cachePath())
	require.NoError(s.t, err)
	options.Storage, options.Cache, options.Provider, options.Shard, options.Clock = s.storage, s.cache, s.cloud, shardID, s.clock
	options.Outdated = func(err error) {
		if s.outdated != nil {
			s.outdated(err)
		}
	}
	s.Store, err = instancestore.Open(s.t.Context(), options)
	return err
}

func (s *shard) open(options instancestore.Options) {
	s.t.Helper()
	require.NoError(s.t, s.tryOpen(options))
}

// restart closes the store and opens it again.
func (s *shard) restart() {
	s.t.Helper()
	s.close()
	s.open(instancestore.Options{})
}

func (s *shard) close() {
	s.t.Helper()
	require.NoError(s.t, s.cache.Close())
}

// loseCache deletes the cache file, which is allowed at any time.
func (s *shard) loseCache() {
	s.t.Helper()
	require.NoError(s.t, os.Remove(s.cachePath()))
}

// add adds a new instance, changed by edit.
func (s *shard) add(edit ...func(*instance.Record)) instance.Record {
	s.t.Helper()
	record := newRecord(s.t)
	for _, e := range edit {
		e(&record)
	}
	require.NoError(s.t, s.Add(s.t.Context(), record))
	return record
}

// want returns an instance and fails the test if it does not exist.
func (s *shard) want(id string) instance.Instance {
	s.t.Helper()
	i, found := s.Get(id)
	require.True(s.t, found, "there is no instance %s", id)
	return i
}

// stored returns the record of an instance in the storage.
func (s *shard) stored(record instance.Record) instance.Record {
	s.t.Helper()
	object, err := s.storage.Store.Get(context.Background(), keyOf(s.t, record))
	require.NoError(s.t, err)
	var stored instance.Record
	require.NoError(s.t, json.Unmarshal(object.Data, &stored))
	return stored
}

// records returns the keys of all records.
func (s *shard) records() []string {
	s.t.Helper()
	infos, err := s.storage.Store.List(context.Background(), "instance/")
	require.NoError(s.t, err)
	var keys []string
	for _, info := range infos {
		keys = append(keys, info.Key)
	}
	return keys
}

func newRecord(t testing.TB) instance.Record {
	t.Helper()
	id, err := puidv7.New("knc")
	require.NoError(t, err)
	return instance.Record{ID: id.String(), Tenant: group.Tenant, Group: group.Group, InfraConfigHash: "sha256:1", CreatedAt: epoch}
}

func keyOf(t testing.TB, record instance.Record) string {
	t.Helper()
	id, err := puidv7.Parse(record.ID)
	require.NoError(t, err)
	return storage.InstanceKey(shardID, record.Tenant, id.StorageKey())
}

func vmOf(record instance.Record, state instance.State) instance.VM {
	return instance.VM{ID: record.ID, ProviderID: "cloud:///" + record.ID, Group: record.Key(), Origin: record.Origin(), State: state}
}

func onDemand(key string) func(*instance.Record) {
	return func(r *instance.Record) { r.OnDemand, r.IdempotencyKey = true, key }
}

func ids(list []instance.Instance) []string {
	var ids []string
	for _, i := range list {
		ids = append(ids, i.ID)
	}
	return ids
}

// cloud is a provider whose instances are files in a folder, so that they
// survive a restart of the server.
type cloud struct {
	*providertest.Instances

	dir string
	// renewed is an instance that needs a new request.
	renewed string
}

// Renews implements provider.Renewer.
func (c *cloud) Renews(id string) bool { return id == c.renewed }

// newCloud returns the cloud in folder dir. It is synced.
func newCloud(t testing.TB, dir string) *cloud {
	t.Helper()
	c := &cloud{Instances: providertest.NewInstances(), dir: dir}
	require.NoError(t, os.MkdirAll(dir, 0o700))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		require.NoError(t, err)
		var vm instance.VM
		require.NoError(t, json.Unmarshal(data, &vm))
		c.Put(vm)
	}
	return c
}

// show creates or changes an instance.
func (c *cloud) show(t testing.TB, vm instance.VM) {
	t.Helper()
	data, err := json.Marshal(vm)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, vm.ID), data, 0o600))
	c.Put(vm)
}

// remove deletes an instance.
func (c *cloud) remove(t testing.TB, id string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(c.dir, id)))
	c.Remove(id)
}

// ids returns the ids of all instances, in order.
func (c *cloud) ids() []string {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return slices.Sorted(maps.Keys(c.VMs))
}

// probe is a storage that counts calls and lets a test intervene.
type probe struct {
	storagetest.Intercepted

	mu    sync.Mutex
	calls map[string]int
	// before and after are called with the name of the method and the key. An
	// error of before prevents the call; an error of after replaces its result.
	before, after func(method, key string) error
}

func newProbe(store storage.Store) *probe {
	p := &probe{calls: map[string]int{}}
	p.Intercepted = storagetest.Intercepted{Store: store, Intercept: p.call}
	return p
}

// count returns the number of calls by method since the last call of count.
func (p *probe) count() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.calls
	p.calls = map[string]int{}
	return calls
}

// call makes a call unless before or after return an error.
func (p *probe) call(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
	p.mu.Lock()
	p.calls[call.Operation]++
	before, after := p.before, p.after
	p.mu.Unlock()
	if before != nil {
		if err := before(call.Operation, call.Key); err != nil {
			return err
		}
	}
	if err := do(ctx); err != nil {
		return err
	}
	if after != nil {
		return after(call.Operation, call.Key)
	}
	return nil
}

// intervene sets before and after.
func (p *probe) intervene(before, after func(method, key string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}
