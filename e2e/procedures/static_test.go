// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/storage"
)

// A static pool gets another instance type: each of its instances is replaced once, and no
// instance of another pool.
func TestChangeStaticPool(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const pool, bystander, replicas = "fixed", "bystander", 4
	const instanceType = "m7i.xlarge"
	configureFixed(t, pool, replicas/2)
	createPool(t, bystander, v1beta1.MachineModeNever, 2, env.ShardIDs...)
	before := nodes(t)
	losses, from := env.NewLossChecker(t, bystander), env.AuditEnd(t)

	p := env.StartProcedure(t, "Change a static pool", map[string]string{
		"NAMESPACE": installation.Namespace,
		"POOL":      pool,
		"SHARDS":    strings.Join(env.ShardIDs, " "),
	})
	p.Do("Edit the group, or its template, in copies", func() {
		for _, shard := range env.ShardIDs {
			editCopy(t, p.Dir(), shard, pool, instanceType)
		}
	})
	p.Run("Check the copies")
	p.Do("Replace the objects with the copies", func() {
		for _, shard := range env.ShardIDs {
			require.NoError(t, os.Rename(filepath.Join(p.Dir(), shard+".jsonc"), configObject(shard)))
		}
	})
	p.Run("Wait until the instances are replaced")

	env.UntilRunning(t, pool, replicas)
	expectKept(t, before, pool, "")
	expectReplacedOnce(t, before, pool, instanceType)
	created := env.Writes(t, from, func(r controlplane.Request) bool { return r.Action() == "create nodes" })
	assert.Len(t, created, replicas, "created Nodes: %s", testcluster.Describe(created))
	expectDeletionsOf(t, from, pool, "", before)
	env.Scale(t, pool, replicas+2)
	env.UntilRunning(t, pool, replicas+2)
	expectUntouched(t, losses)
}

// configureFixed configures a static group on all shards, waits until its pool runs, and
// removes both at the end of the test.
func configureFixed(t *testing.T, name string, size int32) {
	t.Helper()
	for _, shard := range env.ShardIDs {
		require.NoError(t, env.Installation.Reconfigure(shard, func(s *installation.Shard) {
			s.Groups[name] = installation.Group{Size: size}
		}))
	}
	t.Cleanup(func() {
		for _, shard := range env.ShardIDs {
			assert.NoError(t, env.Installation.Reconfigure(shard, func(s *installation.Shard) { delete(s.Groups, name) }))
		}
		untilStatic(t, name, false)
		env.DeletePools(t, name)
	})
	untilStatic(t, name, true)
	env.UntilRunning(t, name, size*int32(len(env.ShardIDs)))
}

// untilStatic waits until a pool reports whether it is static, as wanted.
func untilStatic(t *testing.T, name string, want bool) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, fmt.Sprintf("the pool is static: %t", want), func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err == nil && (pool.Status.IsStatic == nil || *pool.Status.IsStatic != want) {
			err = fmt.Errorf("isStatic is %v", ptr.Deref(pool.Status.IsStatic, !want))
		}
		return err
	})
}

func configObject(shard string) string {
	return filepath.Join(env.Installation.Bucket(), filepath.FromSlash(storage.ConfigKey(shard)))
}

// editCopy copies the configuration of a shard to a folder, with another instance type of a
// group.
func editCopy(t *testing.T, dir, shard, group, instanceType string) {
	t.Helper()
	text, err := os.ReadFile(configObject(shard))
	require.NoError(t, err)
	config := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &config))
	groups := config["groups"].(map[string]any)[installation.Tenant].(map[string]any)
	groups[group].(map[string]any)["instance_type"] = instanceType
	text, err = json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, shard+".jsonc"), text, 0o600))
}

// expectReplacedOnce fails the test if a Node of a pool existed before, or has another instance
// type.
func expectReplacedOnce(t *testing.T, before map[string]corev1.Node, pool, instanceType string) {
	t.Helper()
	var failures []error
	for name, node := range nodes(t) {
		if !isOn(node, pool, "") {
			continue
		}
		if _, old := before[name]; old || node.Labels[corev1.LabelInstanceTypeStable] != instanceType {
			failures = append(failures, fmt.Errorf("node %s is of type %s, from before: %t", name, node.Labels[corev1.LabelInstanceTypeStable], old))
		}
	}
	assert.NoError(t, errors.Join(failures...))
}
