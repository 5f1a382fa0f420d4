// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/storage"
)

// fault is one that must be noticed.
type fault struct {
	// begin makes it happen, and returns what ends it.
	begin func(*testing.T) (end func())
	// alerts are those that fire because of it: their names, with the shard if they have one.
	alerts []string
	// also are those that may fire: whether they do depends on how often a server retries.
	also []string
}

// step has faults that happen together.
type step struct {
	name   string
	faults []fault
	// running selects the targets that run during the faults.
	running string
}

var drill = []step{
	{"the server of a shard is killed", []fault{{begin: shardKilled, alerts: []string{
		"NstanceServerWithoutLeader " + slowShard, "NstanceShardNotConnected " + slowShard,
	}}}, `{shard!="` + slowShard + `"}`},
	{"the addresses of two shards are swapped", []fault{{begin: addressesSwapped, alerts: []string{
		"NstanceShardNotConnected " + slowShard, "NstanceShardNotConnected " + steadyShard,
		"NstanceShardWrongServer " + slowShard, "NstanceShardWrongServer " + steadyShard,
	}}}, allTargets},
	{"drain blocked, no stock, drift, configuration rejected", []fault{
		{begin: drainBlocked, alerts: []string{"NstanceDrainBlocked"}},
		// A lack of capacity is an error of the provider, too.
		{begin: noStock, alerts: []string{
			"NstanceGroupRejected " + slowShard, "NstanceInstancesMissing " + slowShard, "NstanceShortfall " + slowShard,
		}, also: []string{"NstanceServerProviderErrors " + slowShard}},
		{begin: driftByHand, alerts: []string{"NstanceDriftRepeated " + slowShard}},
		{begin: configurationRejected, alerts: []string{"NstanceServerConfigRejected " + steadyShard}},
	}, allTargets},
	{"the operator is killed", []fault{{begin: operatorKilled, alerts: []string{"NstanceOperatorDown"}}}, `{shard!=""}`},
}

// The alerts that are shipped fire for the faults that they are for and for no other, and
// end with them. A minute of their durations is two seconds here. Before and after the
// faults no alert is active, and none fires while a pool is scaled.
func TestAlertsInADrill(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	prometheus := runPrometheus(t, shortRules(t))
	const name, replicas = "drilled", 4
	env.CreatePoolForTest(t, name, replicas)
	env.UntilRunning(t, name, replicas)
	quietAtRest(t, prometheus)
	quietWhileScaled(t, prometheus, name, replicas, 30*time.Second)
	for _, step := range drill {
		t.Run(step.name, func(t *testing.T) {
			undisturbed(t, prometheus, step.running, func(begun time.Time) []string { return step.happen(t, prometheus, begun) })
		})
		testcluster.EventuallyEvery(t, time.Second, 5*time.Minute, "no alert is left after: "+step.name, prometheus.quiet)
		env.UntilRunning(t, name, replicas)
	}
	quietAtRest(t, prometheus)
	quietWhileScaled(t, prometheus, name, replicas, 30*time.Second)
}

// happen returns when the alerts of the faults fire, or when others do, which it returns.
func (s step) happen(t *testing.T, prometheus prometheusAPI, begun time.Time) (others []string) {
	t.Helper()
	var want, also []string
	for _, fault := range s.faults {
		end := fault.begin(t)
		defer end()
		want, also = append(want, fault.alerts...), append(also, fault.also...)
	}
	without := func(alerts, known []string) []string {
		return slices.DeleteFunc(slices.Clone(alerts), func(alert string) bool { return slices.Contains(known, alert) })
	}
	testcluster.EventuallyEvery(t, time.Second, 5*time.Minute, "the alerts fire", func(ctx context.Context) error {
		fired, err := prometheus.alerts(ctx, fmt.Sprintf(`count_over_time(ALERTS{alertstate="firing"}[%ds])`, seconds(time.Since(begun))))
		if err != nil {
			return err
		}
		others = without(fired, slices.Concat(want, also))
		if missing := without(want, fired); len(others) == 0 && len(missing) > 0 {
			return fmt.Errorf("%q do not", missing)
		}
		return nil
	})
	return others
}

// seconds returns a duration in whole seconds, at least one.
func seconds(d time.Duration) int { return max(1, int(d.Seconds())) }

func shardKilled(t *testing.T) (end func()) {
	t.Helper()
	server := env.ShardServer(slowShard)
	testcluster.Kill(t, server)
	return func() { testcluster.Start(t, server) }
}

func addressesSwapped(t *testing.T) (end func()) {
	t.Helper()
	restore := env.SaveConfigMap(t, "nstance-shards")
	env.EditShards(t, func(data map[string]string) {
		data[steadyShard], data[slowShard] = data[slowShard], data[steadyShard]
	})
	return restore
}

// drainBlocked makes a pool smaller whose Pods may not be evicted.
func drainBlocked(t *testing.T) (end func()) {
	t.Helper()
	const name = "drilled-drain"
	require.NoError(t, env.CreatePoolOn(t.Context(), name, 2, steadyShard))
	env.UntilRunning(t, name, 2)
	env.BlockDrains(t, name)
	env.Scale(t, name, 1)
	return func() {
		env.UnblockDrains(t, name)
		env.DeletePools(t, name)
	}
}

// noStock creates a pool on a shard without capacity for it.
func noStock(t *testing.T) (end func()) {
	t.Helper()
	const name = "drilled-stock"
	setQuota(t, map[string]int{scarceType: 0})
	createScarcePool(t, name, 1, slowShard)
	return func() {
		setQuota(t, nil)
		env.UntilRunning(t, name, 1)
		env.DeletePools(t, name)
	}
}

// driftByHand changes the size of a group again whenever the operator has corrected it.
func driftByHand(t *testing.T) (end func()) {
	t.Helper()
	const name = "drilled-drift"
	require.NoError(t, env.CreatePoolOn(t.Context(), name, 1, slowShard))
	env.UntilRunning(t, name, 1)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		var failed error
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := changeGroup(ctx, name, 2); err != nil && ctx.Err() == nil {
				failed = err
			}
		}, 200*time.Millisecond)
		stopped <- failed
	}()
	return func() {
		cancel()
		assert.NoError(t, <-stopped)
		env.DeletePools(t, name)
	}
}

// configurationRejected damages the configuration of a shard.
func configurationRejected(t *testing.T) (end func()) {
	t.Helper()
	path := filepath.Join(env.Installation.Bucket(), filepath.FromSlash(storage.ConfigKey(steadyShard)))
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(`{"shard":`), 0o600))
	return func() { require.NoError(t, os.WriteFile(path, good, 0o600)) }
}

func operatorKilled(t *testing.T) (end func()) {
	t.Helper()
	process := env.OperatorProcess()
	testcluster.Kill(t, process)
	return func() { testcluster.Start(t, process) }
}
