// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

var epoch = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// flakyStorage can lose the response of the next write.
type flakyStorage struct {
	storage.Store
	loseResponse bool
}

func (f *flakyStorage) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := f.Store.Create(ctx, key, data)
	if f.loseResponse {
		f.loseResponse = false
		return "", errors.New("the connection was lost")
	}
	return etag, err
}

// service is an OperatorService with all of its dependencies except a reconciler.
type service struct {
	*OperatorService
	t        testing.TB
	dir      string
	provider *providertest.Instances
	storage  *flakyStorage
	cache    *cache.DB

	mu sync.Mutex
	// changed are the arguments of Changed.
	changed []instance.GroupKey
}

// newService returns a service whose tenants default and other have the static
// groups main, in a pool that dynamic groups may not use, and plain.
func newService(t testing.TB) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), provider: providertest.NewInstances()}
	store, err := file.Open(s.dir)
	require.NoError(t, err)
	s.storage = &flakyStorage{Store: store}
	s.start(filepath.Join(t.TempDir(), "cache"))
	return s
}

// start starts a term with a cache.
func (s *service) start(cachePath string) {
	s.t.Helper()
	wanted, err := groups.Open(s.t.Context(), nil, newConfig(), s.storage)
	require.NoError(s.t, err)
	s.cache, err = cache.Open(s.t.Context(), cachePath)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = s.cache.Close() })
	known, err := instancestore.Open(s.t.Context(), instancestore.Options{
		Storage: s.storage, Cache: s.cache, Provider: s.provider, Shard: "us-west-2a", Clock: clocktesting.NewFakePassiveClock(epoch),
	})
	require.NoError(s.t, err)
	s.OperatorService = &OperatorService{
		Store:          wanted,
		Instances:      known,
		Statuses:       NewStatusCache(StatusOptions{Groups: wanted, Instances: known, Nodes: s.provider}),
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
	types := map[string]provider.InstanceType{
		"m7i.large": {Name: "m7i.large", Arch: provider.ArchAMD64},
		"c7i.large": {Name: "c7i.large", Arch: provider.ArchAMD64},
		"m7g.large": {Name: "m7g.large", Arch: provider.ArchARM64},
	}
	of := map[string]config.Group{"main": {Template: "worker", SubnetPool: "closed"}, "plain": {Template: "worker"}}
	return &config.Config{
		ClusterID: "test",
		Shard: config.Shard{
			ID:                 "us-west-2a",
			Infra:              config.Infra{Provider: "fake", InstanceTypes: types},
			SubnetPools:        map[string][]string{"open": {"subnet-a"}, "closed": {"subnet-b"}},
			DynamicSubnetPools: []string{"open"},
		},
		Templates: map[string]config.Template{
			"worker": {
				Kind: "knd", Arch: provider.ArchAMD64, Size: 1, InstanceType: "m7i.large", SubnetPool: "open",
				// The groups are static.
				Limits: config.SettingLimits{Vars: []string{"*"}, OnDemand: new(true)},
			},
			"arm":     {Kind: "arm", Arch: provider.ArchARM64, Size: 1, InstanceType: "m7g.large", SubnetPool: "open", Limits: config.SettingLimits{OnDemand: new(true)}},
			"inside":  {Kind: "ins", Arch: provider.ArchAMD64, Size: 1, InstanceType: "m7i.large", SubnetPool: "closed", Limits: config.SettingLimits{InstanceTypes: []string{"m7i.*"}, OnDemand: new(true)}},
			"fixed":   {Kind: "fix", Arch: provider.ArchAMD64, InstanceType: "m7i.large", SubnetPool: "open"},
			"foreign": {Kind: "for", Arch: provider.ArchAMD64, InstanceType: "m7i.large", SubnetPool: "open", Tenants: []string{"other"}},
		},
		Groups: map[string]map[string]config.Group{"default": of, "other": of},
	}
}

// as returns the context of a call of a tenant's operator.
func as(ctx context.Context, tenant string) context.Context {
	return context.WithValue(ctx, clientKey{}, pki.Client{ID: "test", Tenant: tenant, Role: pki.RoleOperator})
}

func (s *service) ctx() context.Context { return as(s.t.Context(), "default") }

// add adds a running instance of group plain.
func (s *service) add() instance.Record {
	s.t.Helper()
	record := instance.Record{ID: newID(s.t, "knd"), Tenant: "default", Group: "plain", CreatedAt: epoch}
	require.NoError(s.t, s.Instances.Add(s.t.Context(), record))
	require.NoError(s.t, s.Instances.SetProviderID(s.t.Context(), record.ID, "id-"+record.ID))
	s.show(record.ID, instance.Running)
	return record
}

// address is the address of each instance that the provider lists.
var address = netip.MustParseAddr("10.0.0.7")

// show makes the provider list an instance.
func (s *service) show(id string, state instance.State) {
	s.provider.Put(instance.VM{ID: id, ProviderID: "id-" + id, State: state, Addresses: []netip.Addr{address}})
}

func newID(t testing.TB, kind string) string {
	t.Helper()
	id, err := puidv7.New(kind)
	require.NoError(t, err)
	return id.String()
}

// takeChanged returns the groups that were changed since the last call.
func (s *service) takeChanged() []instance.GroupKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = nil
	return changed
}

// expectStatus expects an error with a code and a text that contains part.
func expectStatus(t testing.TB, what string, err error, code codes.Code, part string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), part) {
		t.Errorf("%s: got %v, want %v with %q", what, err, code, part)
	}
}
