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
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// fault is a fault for which alerts must fire.
type fault struct {
	// begin begins the fault, and returns a function that ends it.
	begin func(*testing.T) (end func())
	// alerts are the names of the alerts that must fire, with the shard if they have one.
	alerts []string
	// also are the alerts that may fire, depending on how often a server retries.
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

// The shipped alerts fire for their faults and for no other, and end with them. A minute of their
// durations is two seconds here. Before and after the faults no alert is active, and no alert
// fires while a pool is scaled.
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

// happen returns when the alerts of the faults fire, or when other alerts fire, which it returns.
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
	env.SetQuota(t, slowShard, map[string]int{scarceType: 0})
	createScarcePool(t, name, 1, slowShard)
	return func() {
		env.SetQuota(t, slowShard, nil)
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

// No shipped alert fires in normal operation, in which a pool is scaled every few minutes. The
// durations of the alerts are not shortened. NSTANCE_QUIET sets how long the test takes ("make
// quiet-hour").
func TestNoAlertFiresInQuietLife(t *testing.T) {
	text := os.Getenv("NSTANCE_QUIET")
	if text == "" {
		t.Skip("NSTANCE_QUIET is not set. 'make quiet-hour' runs this test")
	}
	period, err := time.ParseDuration(text)
	require.NoError(t, err)
	prometheus := runPrometheus(t, shippedRules(t))
	const name, replicas = "quiet", 4
	env.CreatePoolForTest(t, name, replicas)
	env.UntilRunning(t, name, replicas)
	quietWhileScaled(t, prometheus, name, replicas, period)
}

// allTargets selects the targets that are scraped.
const allTargets = ""

// undisturbed runs a part of a test when no alert is active. The part returns the alerts that it
// does not expect. They fail the test, unless scrapes of targets that run have failed in this
// time: for the alerts, a target that does not respond on a busy machine is down. The part runs
// again then.
func undisturbed(t *testing.T, prometheus prometheusAPI, running string, part func(begun time.Time) (unexpected []string)) {
	t.Helper()
	const attempts = 4
	for range attempts {
		testcluster.EventuallyEvery(t, time.Second, 5*time.Minute, "every rule is evaluated and no alert is active", prometheus.quiet)
		begun := time.Now()
		unexpected := part(begun)
		if len(unexpected) == 0 {
			return
		}
		failed, err := prometheus.failedScrapes(t.Context(), running, begun)
		require.NoError(t, err)
		require.NotEmpty(t, failed, "alerts that are not expected: %q", unexpected)
		t.Logf("unexpected alerts: %q. Scrapes have failed: %q", unexpected, failed)
	}
	require.Fail(t, "scrapes have failed each time")
}

// quietAtRest expects that no alert becomes pending for ten minutes of the short rules.
func quietAtRest(t *testing.T, prometheus prometheusAPI) {
	t.Helper()
	undisturbed(t, prometheus, allTargets, func(begun time.Time) []string {
		return observe(t, prometheus, "ALERTS", begun, 20*time.Second)
	})
}

// quietWhileScaled scales a pool up and down for so long, every few minutes if there is
// time for that, and expects that no alert fires.
func quietWhileScaled(t *testing.T, prometheus prometheusAPI, name string, replicas int32, period time.Duration) {
	t.Helper()
	const firing = `ALERTS{alertstate="firing"}`
	scale := func(size int32) {
		env.Scale(t, name, size)
		env.UntilRunning(t, name, size)
	}
	undisturbed(t, prometheus, allTargets, func(begun time.Time) []string {
		for more := true; time.Since(begun) < period; more = !more {
			size := replicas
			if more {
				size += 2
			}
			scale(size)
			if found := observe(t, prometheus, firing, begun, min(3*time.Minute, period/4)); len(found) > 0 {
				return found
			}
		}
		scale(replicas)
		return observe(t, prometheus, firing, begun, 5*time.Second)
	})
}

// observe returns the results that a query of ALERTS has had since a time, as soon as there are
// any, or nil after a period.
func observe(t *testing.T, prometheus prometheusAPI, selector string, since time.Time, period time.Duration) (found []string) {
	t.Helper()
	begin := time.Now()
	testcluster.EventuallyEvery(t, time.Second, period+time.Minute, "the time without alerts is over", func(ctx context.Context) (err error) {
		found, err = prometheus.alerts(ctx, fmt.Sprintf("count_over_time(%s[%ds])", selector, seconds(time.Since(since))))
		if passed := time.Since(begin); err == nil && len(found) == 0 && passed < period {
			err = fmt.Errorf("%s of %s", passed, period)
		}
		return err
	})
	return found
}

// createScarcePool creates a pool of instances of the scarce type.
func createScarcePool(t *testing.T, name string, replicas int32, shards ...string) {
	t.Helper()
	pool := testcluster.NewNstanceMachinePool(name, shards...)
	pool.Spec.InstanceType = scarceType
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
}

// changeGroup changes the size of a group on the slow shard without the operator.
func changeGroup(ctx context.Context, group string, size int32) error {
	connection, err := env.Installation.Dial(slowShard)
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = nstancev1.NewOperatorServiceClient(connection).UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{
		Key: group, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
	})
	return err
}
