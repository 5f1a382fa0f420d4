// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestShardResetGroups confirms the loss of the groups of a shard, and then deletes one of
// them, whose instance was kept.
func TestShardResetGroups(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	storage := []string{"--storage", "file", "--storage-bucket", s.Bucket()}
	reset := append([]string{"shard", "reset-groups", "--shard", "us-west-2a"}, storage...)
	upsert(t, s, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	until(t, func() bool { return len(groupsOf(t, s)["workers"].GetInstances().GetInstances()) == 1 })
	_, err := run(t, reset...)
	wantError(t, err, "groups/us-west-2a.jsonc", "not changed")
	flags := shardFlags(register(t, s), "us-west-2a="+s.Addr)
	s.Stop()
	require.NoError(t, os.Remove(s.GroupsPath()))

	s = servertest.Prepare(t, servertest.Options{DataDir: s.DataDir, Kubernetes: s.Kubernetes, Addr: s.Addr})
	s.Launch()
	s.UntilListening()
	until(t, func() bool {
		_, body := s.Get("/health")
		return len(body) > len("not ready\n")
	})
	assert.Contains(t, mustRun(t, reset...), "Shard us-west-2a has no dynamic groups now.")
	s.ReadConfig()
	s.UntilHealthy()
	assert.EqualValues(t, 1, groupsOf(t, s)["workers"].GetSize())

	mustRun(t, append([]string{"group", "delete", "workers", "--shard", "us-west-2a"}, flags...)...)
	until(t, func() bool { return len(groupsOf(t, s)) == 0 })
}

// until waits until a condition is true.
func until(t *testing.T, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	require.NoError(t, err)
}

func TestShardResetGroupsFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no shard":   {[]string{"--storage-bucket", "b"}, "--shard"},
		"no bucket":  {[]string{"--shard", "a"}, "--storage-bucket"},
		"ill-formed": {[]string{"--shard", "A", "--storage-bucket", "b"}, "--shard"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, append([]string{"shard", "reset-groups"}, test.args...)...)
			wantError(t, err, test.want)
		})
	}
}

// TestShardAcceptLosses deletes the instances of a group without the server. The server
// replaces them when an administrator has accepted the losses.
func TestShardAcceptLosses(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	upsert(t, s, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 4})
	nodes := func() int {
		list, err := s.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items)
	}
	until(t, func() bool { return nodes() == 4 })
	require.NoError(t, s.Kubernetes.CoreV1().Nodes().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	// The server may not have noticed the loss when it is accepted first.
	until(t, func() bool {
		assert.Contains(t, mustRun(t, "shard", "accept-losses", "workers", "--shard", "us-west-2a", "--storage", "file", "--storage-bucket", s.Bucket()),
			"The missing instances of group default/workers in shard us-west-2a are replaced within seconds.")
		return nodes() == 4
	})

	// A typo, or the wrong bucket, does not look like the cure.
	accept := func(group, shard string) error {
		_, err := run(t, "shard", "accept-losses", group, "--shard", shard, "--storage", "file", "--storage-bucket", s.Bucket())
		return err
	}
	wantError(t, accept("worker", "us-west-2a"), "shard us-west-2a has no group default/worker; the groups of tenant default are", "workers")
	wantError(t, accept("workers", "us-west-2b"), `--shard: the storage has no configuration, group or instance of shard "us-west-2b"; it has us-west-2a`)
	_, err := os.Stat(filepath.Join(s.Bucket(), "accepted-losses", "us-west-2a", "default.worker.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	// A group that was lost is known from its instances.
	s.Stop()
	require.NoError(t, os.Remove(s.GroupsPath()))
	require.NoError(t, accept("workers", "us-west-2a"))
	// What cannot be read may have the group.
	require.NoError(t, os.WriteFile(s.GroupsPath(), []byte("{"), 0o600))
	wantError(t, accept("others", "us-west-2a"), "it is not known whether group default/others exists", "groups/us-west-2a.jsonc")
	_, err = run(t, "shard", "reset-groups", "--shard", "nope", "--storage", "file", "--storage-bucket", s.Bucket())
	wantError(t, err, `shard "nope"`)
	require.NoFileExists(t, filepath.Join(s.Bucket(), "groups", "nope.jsonc"))

	_, err = run(t, "shard", "accept-losses", "Workers", "--shard", "A")
	wantError(t, err, "--shard", "--storage-bucket", "Workers")
}
