// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents/agenthealth"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/internal/loadbalancers"
	"nstance.dev/operator/pkg/server/internal/reconciler"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// groupMap has the groups of a test.
type groupMap map[instance.GroupKey]*groups.Group

func (m groupMap) Get(key instance.GroupKey) (*groups.Group, bool) {
	group, found := m[key]
	return group, found
}

func (m groupMap) Keys() []instance.GroupKey { return slices.Collect(maps.Keys(m)) }

// The cache has the hashes of all groups after each change, and is not written when a change
// affects no hash. A failed write is repeated with the next change.
func TestGroupHashes(t *testing.T) {
	db, err := cache.Open(t.Context(), filepath.Join(t.TempDir(), "cache.sqlite"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	a, b := instance.GroupKey{Tenant: "default", Group: "a"}, instance.GroupKey{Tenant: "default", Group: "b"}
	all := groupMap{a: {RuntimeConfigHash: "1", InfraConfigHash: "2"}, b: {}}
	h := newGroupHashes(nil, db)
	counted := &countingCache{DB: db}
	h.groups, h.cache = all, counted
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	want := map[instance.GroupKey]cache.Hashes{{Tenant: "other"}: {}}
	require.NoError(t, db.PutGroups(t.Context(), nil, want))

	for _, step := range []struct {
		what    string
		change  func()
		ctx     context.Context
		writes  int
		written bool
		// replaces: the write replaces all hashes, because the hashes in the cache are not known.
		replaces bool
	}{
		{"the first time", func() {}, t.Context(), 1, true, true},
		{"no change", func() {}, t.Context(), 0, false, false},
		{"a size", func() { all[a] = &groups.Group{RuntimeConfigHash: "1", InfraConfigHash: "2", Size: 5} }, t.Context(), 0, false, false},
		{"a hash", func() { all[a] = &groups.Group{RuntimeConfigHash: "3", InfraConfigHash: "2"} }, t.Context(), 1, true, false},
		{"a deleted group", func() { delete(all, b) }, t.Context(), 1, true, false},
		{"a failed write", func() { all[b] = &groups.Group{} }, canceled, 1, false, false},
		{"the change after it", func() {}, t.Context(), 1, true, true},
	} {
		step.change()
		counted.writes, counted.replaced = 0, false
		h.write(step.ctx)
		assert.Equal(t, step.writes, counted.writes, "writes: %s", step.what)
		assert.Equal(t, step.replaces, counted.replaced, "writes that replace all: %s", step.what)
		if step.written {
			want = map[instance.GroupKey]cache.Hashes{}
			for key, group := range all {
				want[key] = cache.Hashes{RuntimeConfig: group.RuntimeConfigHash, InfraConfig: group.InfraConfigHash}
			}
		}
		found, err := db.Groups(t.Context())
		require.NoError(t, err)
		if diff := cmp.Diff(want, found); diff != "" {
			t.Errorf("%s (-want +cache):\n%s", step.what, diff)
		}
	}
}

// countingCache counts the writes of hashes.
type countingCache struct {
	*cache.DB
	writes int
	// replaced is true if a write did not know the hashes that the cache has.
	replaced bool
}

func (c *countingCache) PutGroups(ctx context.Context, before, groups map[instance.GroupKey]cache.Hashes) error {
	c.writes++
	c.replaced = c.replaced || before == nil
	return c.DB.PutGroups(ctx, before, groups)
}

// countingGroups counts how often the groups are listed, which every write does.
type countingGroups struct {
	groupMap
	writes atomic.Int32
}

func (c *countingGroups) Keys() []instance.GroupKey {
	c.writes.Add(1)
	return nil
}

// The first change is written at once. Changes that follow it closely share a write.
func TestGroupHashesAreWrittenInIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &countingGroups{}
		h := newGroupHashes(nil, nil)
		h.groups, h.written = all, map[instance.GroupKey]cache.Hashes{}
		go h.run(t.Context())
		synctest.Wait()
		require.EqualValues(t, 1, all.writes.Load(), "writes at the start")
		const changes = 100
		for range changes {
			h.enqueue()
			synctest.Wait()
		}
		require.EqualValues(t, 1, all.writes.Load(), "writes before the interval is over")
		time.Sleep(groupHashesInterval)
		synctest.Wait()
		require.EqualValues(t, 2, all.writes.Load(), "writes after %d changes in the interval", changes)
		time.Sleep(groupHashesInterval)
		synctest.Wait()
		require.EqualValues(t, 2, all.writes.Load(), "writes without a change")
	})
}

// TestReadConfigOfAHangingStorage starts a server whose storage does not respond: the calls
// end, and the start fails.
func TestReadConfigOfAHangingStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := file.Open(t.TempDir())
		require.NoError(t, err)
		calls := 0
		s := &Server{Shard: "us-west-2a", Storage: storagetest.Intercepted{Store: store,
			Intercept: func(ctx context.Context, _ storagetest.Call, _ func(context.Context) error) error {
				calls++
				<-ctx.Done()
				return ctx.Err()
			}}}
		_, err = s.readConfig(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, readAttempts, calls)
	})
}

func TestEveryMetricIsDocumented(t *testing.T) {
	sh := &shared{registry: prometheus.NewRegistry()}
	sh.registerMetrics()
	grpcapi.Count(sh.registry)
	storage.WithMetrics(nil, sh.registry)
	registered := metricstest.Described([]string{"nstance_server_"}, sh.registry, &reconciler.Collector{},
		&loadbalancers.Syncer{}, &agenthealth.Tracker{}, new(leaderNetwork).metric())
	assert.Equal(t, registered, metricstest.Documented(t, filepath.Join("..", "..", "docs", "server-reference.md")))
}

// TestAdvertisedHost: a server never tells its clients an address that it has guessed.
func TestAdvertisedHost(t *testing.T) {
	failed := errors.New("address family not supported by protocol")
	wildcard := config.Addresses{HealthAddr: ":1", ElectionAddr: ":2", RegistrationAddr: ":3", OperatorAddr: ":4", AgentAddr: ":5"}
	all := func(host string) config.Addresses {
		return config.Addresses{HealthAddr: host + ":1", ElectionAddr: host + ":2", RegistrationAddr: host + ":3", OperatorAddr: host + ":4", AgentAddr: host + ":5"}
	}
	for name, test := range map[string]struct {
		host  string
		shard config.Shard
		bind  config.Addresses
		list  []string
		err   error
		want  config.Addresses
	}{
		"the first global address":                           {bind: wildcard, list: []string{"127.0.0.1/8", "fe80::1/64", "10.0.0.7/24", "10.0.0.8/24"}, want: all("10.0.0.7")},
		"a machine with only loopback addresses":             {bind: wildcard, list: []string{"127.0.0.1/8"}, want: all("127.0.0.1")},
		"the host of a flag":                                 {host: "10.1.1.1", bind: wildcard, err: failed, want: all("10.1.1.1")},
		"hosts of the configuration":                         {shard: config.Shard{Advertise: all("10.2.2.2")}, bind: wildcard, err: failed, want: all("10.2.2.2")},
		"hosts that are bound":                               {bind: all("10.3.3.3"), err: failed, want: all("10.3.3.3")},
		"addresses that cannot be listed, and are not named": {bind: wildcard, err: failed},
	} {
		t.Run(name, func(t *testing.T) {
			list := func() ([]net.Addr, error) {
				var addresses []net.Addr
				for _, text := range test.list {
					ip, network, err := net.ParseCIDR(text)
					require.NoError(t, err)
					addresses = append(addresses, &net.IPNet{IP: ip, Mask: network.Mask})
				}
				return addresses, test.err
			}
			got, err := (&Server{Host: test.host}).advertised(&test.shard, test.bind, list)
			assert.Equal(t, test.want, got)
			if test.want == (config.Addresses{}) {
				require.ErrorIs(t, err, failed)
				require.ErrorContains(t, err, "allow AF_NETLINK")
				return
			}
			require.NoError(t, err)
		})
	}
}
