// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
	"nstance.dev/operator/pkg/server/nonce"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// The groups of the tests. Of workers the drain takes 5 minutes, of hasty no
// time.
var (
	workersKey = instance.GroupKey{Tenant: "default", Group: "workers"}
	otherKey   = instance.GroupKey{Tenant: "default", Group: "other"}
	hastyKey   = instance.GroupKey{Tenant: "default", Group: "hasty"}
)

// newConfig returns the configuration of a shard with the static group hasty.
func newConfig() *config.Config {
	return &config.Config{
		ClusterID: "test",
		Shard: config.Shard{
			ID: "a",
			Infra: config.Infra{Provider: config.ProviderKwok, Kwok: config.Kwok{
				InstanceTypes: map[string]instance.Type{
					"small": {Name: "small", Arch: instance.ArchAMD64},
					"large": {Name: "large", Arch: instance.ArchAMD64},
				},
			}},
			SubnetPools:         map[string][]string{"pool": {"subnet-1", "subnet-2"}, "second": {"subnet-3"}},
			DefaultDrainTimeout: 5 * time.Minute,
			GarbageCollection:   config.GarbageCollection{DeletedRecordRetention: time.Hour},
		},
		Templates: map[string]config.Template{
			"worker": {Kind: "knd", Arch: instance.ArchAMD64, InstanceType: "small", SubnetPool: "pool"},
		},
		Groups: map[string]map[string]config.Group{
			"default": {"hasty": {Template: "worker", Size: new(int32(0)), DrainTimeout: new(time.Duration(0))}},
		},
	}
}

// server is what of a shard server the reconciler works with. All that survives
// a restart are the storage, the cloud and, if it is lucky,
// the cache.
type server struct {
	t testing.TB
	// dir has the cache in it.
	dir string
	// objects has the storage in it.
	objects string
	config  *config.Config
	storage storage.Store
	cloud   *cloud
	// bound is called before every call to storage or cloud.
	bound func()

	cache      *cache.DB
	groups     *groups.Store
	instances  *instances.Store
	reconciler *Reconciler
	metrics    *prometheus.Registry
	running    sync.WaitGroup
	cancel     context.CancelFunc

	mu     sync.Mutex
	events []event
	told   []failure
	// shown are the provider ids of every group when it was last told of.
	shown map[instance.GroupKey][]string
}

// start runs a server in a bubble of synctest until the test ends.
func start(t testing.TB, c *config.Config) *server {
	t.Helper()
	objects := t.TempDir()
	files, err := file.Open(objects)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: t.TempDir(), objects: objects, config: c, storage: &turns{Store: files, turn: make(chan struct{}, 1)}, cloud: newCloud(), shown: map[instance.GroupKey][]string{}}
	s.lead()
	t.Cleanup(func() { s.end() })
	return s
}

// lead begins a term with what is in the storage, the cache and the cloud.
func (s *server) lead() {
	s.t.Helper()
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.cache, err = cache.Open(ctx, filepath.Join(s.dir, "cache.sqlite")); err != nil {
		s.t.Fatal(err)
	}
	if s.groups, err = groups.Open(ctx, s.config, s.storage); err != nil {
		s.t.Fatal(err)
	}
	s.instances, err = instances.Open(ctx, instances.Options{
		Storage: s.storage, Cache: s.cache, Provider: s.cloud, Shard: "a", Clock: clock.RealClock{},
	})
	s.must(err)
	s.metrics = prometheus.NewRegistry()
	s.reconciler = New(Options{
		Groups:    s.groups,
		Instances: s.instances,
		Provider:  s.cloud,
		Specs: provision.New(provision.Options{
			Config: s.groups.Config, Nonces: nonce.NewSigner(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))),
		}),
		Events:  s,
		Changed: s.show,
		Failed:  s.fail,
		Bound: func(ctx context.Context) (context.Context, context.CancelFunc) {
			if s.bound != nil {
				s.bound()
			}
			return context.WithTimeout(ctx, 30*time.Second)
		},
		Metrics: NewMetrics(s.metrics),
	})
	reconciler := s.reconciler
	s.running.Go(func() { _ = s.cloud.Run(ctx, reconciler.Enqueue, s.fail) })
	synctest.Wait()
	s.running.Go(func() { reconciler.Run(ctx) })
	synctest.Wait()
}

func (s *server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// end ends the term.
func (s *server) end() {
	s.cancel()
	s.running.Wait()
	if err := s.cache.Close(); err != nil {
		s.t.Error(err)
	}
}

// loseCache is for a server that does not lead.
func (s *server) loseCache() {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(filepath.Join(s.dir, "cache.sqlite"+suffix))
	}
}

// reconfigure puts another configuration in force and waits until the reconciler
// has nothing to do.
func (s *server) reconfigure(change func(*config.Config)) {
	s.t.Helper()
	s.config = newConfig()
	change(s.config)
	if err := s.groups.Reconfigure(s.t.Context(), s.config); err != nil {
		s.t.Fatal(err)
	}
	for _, key := range s.groups.Keys() {
		s.reconciler.Enqueue(key)
	}
	synctest.Wait()
}

// scale gives a group a size and waits until the reconciler has nothing to do.
func (s *server) scale(key instance.GroupKey, size int) {
	s.t.Helper()
	if _, _, err := s.groups.Upsert(s.t.Context(), key, sizeOf(size)); err != nil {
		s.t.Fatal(err)
	}
	s.look(key)
}

// remove deletes a group.
func (s *server) remove(key instance.GroupKey) {
	s.t.Helper()
	if _, err := s.groups.Delete(s.t.Context(), key); err != nil {
		s.t.Fatal(err)
	}
	s.look(key)
}

// look has a group looked at and waits until there is nothing to do.
func (s *server) look(key instance.GroupKey) {
	s.reconciler.Enqueue(key)
	synctest.Wait()
}

// settle lets the cloud do what it was told until nothing is left.
func (s *server) settle() {
	for range 20 {
		s.cloud.settle()
		synctest.Wait()
	}
}

// run gives a group a size and lets its instances start.
func (s *server) run(key instance.GroupKey, size int) []string {
	s.t.Helper()
	s.scale(key, size)
	s.settle()
	ids := s.cloud.ids(key)
	if len(ids) != size {
		s.t.Fatalf("group %s has %d instances, want %d", key, len(ids), size)
	}
	s.cloud.takeCalls()
	s.takeEvents()
	return ids
}

// pass lets time go by, until the reconciler has nothing to do at its end.
func (s *server) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// onDemand makes the record of an on-demand instance, as an operator would.
func (s *server) onDemand(key instance.GroupKey, change func(*instance.Record)) string {
	s.t.Helper()
	id, err := puidv7.New("knd")
	s.must(err)
	record := instance.Record{ID: id.String(), Tenant: key.Tenant, Group: key.Group, OnDemand: true, CreatedAt: time.Now()}
	change(&record)
	if err := s.instances.Add(s.t.Context(), record); err != nil {
		s.t.Fatal(err)
	}
	s.look(key)
	return record.ID
}

// acknowledge is what an operator calls when a drain is done.
func (s *server) acknowledge(key instance.GroupKey, id string) {
	s.t.Helper()
	if err := s.instances.Acknowledge(s.t.Context(), id); err != nil {
		s.t.Fatal(err)
	}
	s.look(key)
}

// sizeOf is what an operator asks to make a group of a size.
func sizeOf(size int) groups.Change {
	return groups.Change{Template: "worker", Size: int32(size)}
}
