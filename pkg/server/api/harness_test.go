// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

var epoch = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// cloud is a provider that shows what it is told to. Nobody orders anything:
// that is the reconciler's part, and there is none here.
type cloud struct {
	instance.Provider
	synced chan struct{}

	mu  sync.Mutex
	vms map[string]instance.VM
}

func (c *cloud) Synced() <-chan struct{} { return c.synced }

func (c *cloud) Get(id string) (instance.VM, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	vm, known := c.vms[id]
	return vm, known
}

func (c *cloud) ExpectedNode(instance.Spec) *corev1.Node { return nil }

// show lets an instance be in a state.
func (c *cloud) show(id string, state instance.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vms[id] = instance.VM{ID: id, ProviderID: "id-" + id, State: state}
}

func (c *cloud) hide(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vms, id)
}

// flakyStorage can lose the answer of the next write.
type flakyStorage struct {
	storage.Store
	loseAnswer bool
}

func (f *flakyStorage) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := f.Store.Create(ctx, key, data)
	if f.loseAnswer {
		f.loseAnswer = false
		return "", errors.New("the connection was lost")
	}
	return etag, err
}

// service is an OperatorService with all that is below it but a reconciler.
type service struct {
	*OperatorService
	t       testing.TB
	dir     string
	cloud   *cloud
	storage *flakyStorage
	cache   *cache.DB

	mu sync.Mutex
	// changed are the groups that were to be looked at.
	changed []instance.GroupKey
}

// newService returns a service with the static group main, in a pool that dynamic
// groups may not use, and group plain, of tenants default and other.
func newService(t testing.TB) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), cloud: &cloud{synced: make(chan struct{}), vms: map[string]instance.VM{}}}
	close(s.cloud.synced)
	store, err := file.Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	s.storage = &flakyStorage{Store: store}
	s.start(filepath.Join(t.TempDir(), "cache"))
	return s
}

// start begins a term with a cache.
func (s *service) start(cachePath string) {
	s.t.Helper()
	wanted, err := groups.Open(s.t.Context(), newConfig(), s.storage)
	s.must(err)
	s.cache, err = cache.Open(s.t.Context(), cachePath)
	s.must(err)
	s.t.Cleanup(func() { _ = s.cache.Close() })
	known, err := instances.Open(s.t.Context(), instances.Options{
		Storage: s.storage, Cache: s.cache, Provider: s.cloud, Shard: "us-west-2a", Clock: clocktesting.NewFakePassiveClock(epoch),
	})
	s.must(err)
	s.OperatorService = &OperatorService{
		Store:          wanted,
		Instances:      known,
		Board:          NewBoard(wanted, known, s.cloud),
		Errors:         NewErrors(),
		InstanceEvents: NewInstanceEvents(),
		Changed: func(key instance.GroupKey) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed = append(s.changed, key)
		},
	}
}

func newConfig() *config.Config {
	types := map[string]instance.Type{
		"m7i.large": {Name: "m7i.large", Arch: instance.ArchAMD64},
		"c7i.large": {Name: "c7i.large", Arch: instance.ArchAMD64},
		"m7g.large": {Name: "m7g.large", Arch: instance.ArchARM64},
	}
	of := map[string]config.Group{"main": {Template: "worker", SubnetPool: "closed"}, "plain": {Template: "worker"}}
	return &config.Config{
		ClusterID: "test",
		Shard: config.Shard{
			ID:                 "us-west-2a",
			Infra:              config.Infra{Provider: config.ProviderKwok, Kwok: config.Kwok{InstanceTypes: types}},
			SubnetPools:        map[string][]string{"open": {"subnet-a"}, "closed": {"subnet-b"}},
			DynamicSubnetPools: []string{"open"},
		},
		Templates: map[string]config.Template{
			"worker": {Kind: "knd", Arch: instance.ArchAMD64, Size: 1, InstanceType: "m7i.large", SubnetPool: "open"},
			"arm":    {Kind: "arm", Arch: instance.ArchARM64, Size: 1, InstanceType: "m7g.large", SubnetPool: "open"},
			"inside": {Kind: "ins", Arch: instance.ArchAMD64, Size: 1, InstanceType: "m7i.large", SubnetPool: "closed"},
		},
		Groups: map[string]map[string]config.Group{"default": of, "other": of},
	}
}

func (s *service) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// as returns the context of a call by a tenant's operator.
func as(ctx context.Context, tenant string) context.Context {
	return context.WithValue(ctx, clientKey{}, pki.Client{ID: "test", Tenant: tenant, Role: pki.RoleOperator})
}

func (s *service) ctx() context.Context { return as(s.t.Context(), "default") }

// add adds an instance of group plain that runs.
func (s *service) add() instance.Record {
	s.t.Helper()
	record := instance.Record{ID: newID(s.t, "knd"), Tenant: "default", Group: "plain", CreatedAt: epoch}
	s.must(s.Instances.Add(s.t.Context(), record))
	s.must(s.Instances.SetProviderID(s.t.Context(), record.ID, "id-"+record.ID))
	s.cloud.show(record.ID, instance.Running)
	return record
}

func newID(t testing.TB, kind string) string {
	t.Helper()
	id, err := puidv7.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// takeChanged returns the groups that were to be looked at since the last call.
func (s *service) takeChanged() []instance.GroupKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = nil
	return changed
}

// expectStatus expects an error of a code whose text has a part.
func expectStatus(t testing.TB, what string, err error, code codes.Code, part string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), part) {
		t.Errorf("%s: got %v, want %v with %q", what, err, code, part)
	}
}
