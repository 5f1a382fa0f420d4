// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/storage"
)

func configurationFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "the configuration of a server has no template any more", Happen: withConfiguration(func(path string) error {
			return replaceInFile(path, `"worker"`, `"other"`)
		})},
		{Name: "the provider of a shard is unreachable", Happen: unreachableProvider},
	}, testcluster.InFull(
		testcluster.Fault{Name: "the configuration of a server is damaged", Happen: withConfiguration(func(path string) error {
			return os.WriteFile(path, []byte(`{"shard":`), 0o600)
		})},
	)...)
}

// withConfiguration is a configuration that is rejected. The server continues with the one
// before, also after a restart.
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

// unreachableProvider is a shard whose server cannot reach the API server that has its
// simulated instances. It does not serve before it knows them.
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
