// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/tier"
)

func serverFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "all servers are killed", Happen: testcluster.During(func(t *testing.T) { killAndStart(t, shardIDs...) })},
		{Name: "a server is killed several times", Happen: testcluster.During(func(t *testing.T) {
			for range 4 {
				killAndStart(t, shardIDs[0])
			}
		})},
		{Name: "all servers hang", Happen: testcluster.During(func(t *testing.T) { hang(t, shardIDs...) })},
	}, testcluster.OnlyInFull(
		testcluster.Fault{Name: "a server is killed", Happen: testcluster.During(func(t *testing.T) { killAndStart(t, shardIDs[1]) })},
		testcluster.Fault{Name: "a server hangs", Happen: testcluster.During(func(t *testing.T) { hang(t, shardIDs[2]) })},
	)...)
}

func killAndStart(t *testing.T, shards ...string) {
	t.Helper()
	for _, shard := range shards {
		require.NoError(t, env.ShardServer(shard).Kill(t.Context()))
	}
	for _, shard := range shards {
		testcluster.Start(t, env.ShardServer(shard))
	}
}

// hang suspends servers until the operator reports it.
func hang(t *testing.T, shards ...string) {
	t.Helper()
	for _, shard := range shards {
		server := env.ShardServer(shard)
		require.NoError(t, testcluster.FreezeUnlocked(server, env.Installation.Bucket()))
		defer func() { require.NoError(t, server.Thaw()) }()
	}
	untilUnreachable(t)
}

func configurationFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "the configuration of a server has no template any more", Happen: withConfiguration(func(path string) error {
			return replaceInFile(path, `"worker"`, `"other"`)
		})},
		{Name: "the provider of a shard is unreachable", Happen: unreachableProvider},
	}, testcluster.OnlyInFull(
		testcluster.Fault{Name: "the configuration of a server is damaged", Happen: withConfiguration(func(path string) error {
			return os.WriteFile(path, []byte(`{"shard":`), 0o600)
		})},
	)...)
}

// withConfiguration is a configuration that is rejected. The server continues with the
// configuration before, also after a restart.
func withConfiguration(change func(path string) error) func(*testing.T, testcluster.ScaleUp) {
	return func(t *testing.T, scaleUp testcluster.ScaleUp) {
		shard := shardIDs[1]
		path := filepath.Join(env.Installation.Bucket(), filepath.FromSlash(storage.ConfigKey(shard)))
		good, err := os.ReadFile(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, os.WriteFile(path, good, 0o600)) }()
		require.NoError(t, change(path))
		untilRejected(t, shard)
		killAndStart(t, shard)
		untilRejected(t, shard)
		scaleUp.Begin(t)
		scaleUp.UntilShardsRun(t)
	}
}

func untilRejected(t *testing.T, shard string) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "the server reports that it rejects its configuration", func(ctx context.Context) error {
		rejected, err := installation.Metric(ctx, env.Installation.ShardURL(shard), "nstance_server_config_rejected", nil)
		if err == nil && rejected != 1 {
			err = fmt.Errorf("the metric is %v", rejected)
		}
		return err
	})
}

// unreachableProvider is a shard whose server cannot reach the API server that has its simulated
// instances. It does not serve before it has listed the instances.
func unreachableProvider(t *testing.T, scaleUp testcluster.ScaleUp) {
	shard := shardIDs[2]
	server := env.ShardServer(shard)
	path, err := env.Kubeconfig(server.Name)
	require.NoError(t, err)
	ready := server.Ready
	defer func() {
		_, err := env.Kubeconfig(server.Name)
		require.NoError(t, err)
		server.Ready = ready
		killAndStart(t, shard)
	}()
	require.NoError(t, replaceInFile(path, env.Server(), "https://127.0.0.1:1"))
	server.Ready = controlplane.Probe{URL: env.Installation.ShardURL(shard) + "/metrics"}
	killAndStart(t, shard)
	scaleUp.Begin(t)
	untilUnreachable(t)
}

// replaceInFile replaces a text that the file contains.
func replaceInFile(path, before, after string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Contains(content, []byte(before)) {
		return fmt.Errorf("%s does not contain %s", path, before)
	}
	return os.WriteFile(path, bytes.ReplaceAll(content, []byte(before), []byte(after)), 0o600)
}

// TestWrongClocks is TestShardFaults with wrong clocks.
func TestWrongClocks(t *testing.T) {
	if !tier.Full() {
		t.Skip("operator and servers have the clock of the machine: make test-full builds them with one that tests set")
	}
	env.ExpectNoLosses(t, timeless, clockFaults(), nil)
}

// timeless is the pool that must not lose instances while clocks are wrong.
const timeless = "timeless"

func clockFaults() []testcluster.Fault {
	server := func() *controlplane.Component { return env.ShardServer(shardIDs[0]) }
	run := func(t *testing.T, scaleUp testcluster.ScaleUp) { scaleUp.UntilShardsRun(t) }
	// A certificate that is not valid yet is not accepted.
	unreachable := func(t *testing.T, _ testcluster.ScaleUp) {
		env.UntilShardsReachable(t, timeless, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable)
	}
	return []testcluster.Fault{
		{Name: "the clock of a server is an hour ahead", Happen: wrongClock(time.Hour, server, unreachable)},
		{Name: "the clock of a server is an hour behind", Happen: wrongClock(-time.Hour, server, unreachable)},
		{Name: "the clock of the operator is an hour ahead", Happen: wrongClock(time.Hour, env.OperatorProcess, run)},
		{Name: "the clock of the operator is an hour behind", Happen: wrongClock(-time.Hour, env.OperatorProcess, unreachable)},
	}
}

// wrongClock restarts a component with another clock until it has had its effect, and then with
// the right clock.
func wrongClock(ahead time.Duration, find func() *controlplane.Component, effect func(*testing.T, testcluster.ScaleUp)) func(*testing.T, testcluster.ScaleUp) {
	return func(t *testing.T, scaleUp testcluster.ScaleUp) {
		component := find()
		before := component.Env
		defer restartWith(t, component, before)
		restartWith(t, component, slices.Concat(before, controlplane.Clock(ahead)))
		scaleUp.Begin(t)
		effect(t, scaleUp)
	}
}

func restartWith(t *testing.T, component *controlplane.Component, environment []string) {
	t.Helper()
	require.NoError(t, component.Stop(t.Context()))
	component.Env = environment
	testcluster.Start(t, component)
}
