// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Groups that servers have when the operator starts become pools, but not before all shards have
// reported. Existing pools are reconciled until then.
func TestImport(t *testing.T) {
	const existing, missing = "existing", "us-west-2c"
	runPool(t, existing, 2, shardIDs[:2]...)
	t.Cleanup(func() { deletePools(t, existing) })
	testcluster.Stop(t, env.OperatorProcess())
	t.Cleanup(configureGroups(t, map[string]map[string]int32{
		"main":   {"us-west-2a": 3, "us-west-2b": 2},
		"uneven": {"us-west-2a": 1, "us-west-2b": 4},
	}))
	losses := []*testcluster.LossChecker{env.NewLossChecker(t, "main"), env.NewLossChecker(t, "uneven")}
	shard := env.ShardServer(missing)
	testcluster.Kill(t, shard)
	from := env.AuditEnd(t)
	testcluster.Start(t, env.OperatorProcess())

	env.Scale(t, existing, 4)
	testcluster.Eventually(t, 2*time.Minute, "the pool is scaled while a shard is down", func(ctx context.Context) error {
		return errors.Join(env.SizesAre(ctx, existing, 2, 2), env.Running(ctx, existing, 4))
	})
	if created := creations(t, from); len(created) > 0 {
		t.Errorf("with a shard down objects were created:%s", testcluster.Describe(created))
	}

	testcluster.Start(t, shard)
	for name, sizes := range map[string][]int32{"main": {3, 2}, "uneven": {1, 4}} {
		testcluster.Eventually(t, 2*time.Minute, name+" is imported", func(ctx context.Context) error {
			return imported(ctx, name, 5, "us-west-2a", "us-west-2b")
		})
		testcluster.Eventually(t, 2*time.Minute, name+" runs", func(ctx context.Context) error {
			return errors.Join(env.SizesAre(ctx, name, sizes...), env.Running(ctx, name, 5))
		})
	}
	// Each server gets the revision of the new shard group, with the size that it has.
	for _, l := range losses {
		if calls := l.ExpectNone(t); calls != 2 {
			t.Errorf("the servers received %d calls for %s, want one each", calls, l.Group)
		}
	}

	// Uneven sizes that were imported stay until the replicas are changed.
	env.Scale(t, "uneven", 6)
	testcluster.Eventually(t, 2*time.Minute, "uneven is scaled by a user", func(ctx context.Context) error {
		return errors.Join(env.SizesAre(ctx, "uneven", 3, 3), env.Running(ctx, "uneven", 6))
	})
}

// The operator waits for a shard that is configured later, and imports its groups too.
func TestImportFromAddedShard(t *testing.T) {
	const name, existing = "later", "existing-later"
	runPool(t, existing, 1, "us-west-2a")
	t.Cleanup(func() { deletePools(t, existing) })
	added := servertest.Options{Cluster: installation.ClusterID, Shard: "us-west-2d", Authority: env.Installation.Authority()}
	added.DataDir, added.Kubernetes, added.Addr = serverWithGroup(t, added, name, 2)

	defer env.SaveConfigMap(t, "nstance-shards")()
	env.EditShards(t, func(data map[string]string) { data[added.Shard] = added.Addr })
	from := env.AuditEnd(t)
	defer configureGroups(t, map[string]map[string]int32{name: {"us-west-2a": 1}})()
	// When the operator reports a size that its server reported after the new group,
	// it has received the group, too.
	env.Scale(t, existing, 2)
	env.UntilRunning(t, existing, 2)
	if created := creations(t, from); len(created) > 0 {
		t.Errorf("before the added shard was up objects were created:%s", testcluster.Describe(created))
	}

	servertest.Start(t, added)
	testcluster.Eventually(t, 2*time.Minute, "the group is imported from both shards", func(ctx context.Context) error {
		return imported(ctx, name, 3, "us-west-2a", "us-west-2d")
	})
	testcluster.Eventually(t, 2*time.Minute, "nothing is rebalanced", func(ctx context.Context) error { return env.SizesAre(ctx, name, 1, 2) })
}

// serverWithGroup starts a server that has a group, stops it again, and returns the data
// directory, the API server with the Nodes and the address with which another server can replace
// it.
func serverWithGroup(t *testing.T, o servertest.Options, group string, size int32) (string, kubernetes.Interface, string) {
	t.Helper()
	server := servertest.Start(t, o)
	_, err := server.Operator(installation.Tenant).UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: group, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
	})
	require.NoError(t, err)
	server.Stop()
	return server.DataDir, server.Kubernetes, server.Addr
}

// imported succeeds when a group has become a pool and a MachinePool.
func imported(ctx context.Context, name string, replicas int32, shards ...v1beta1.Identifier) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	if pool.Spec.Group != v1beta1.Identifier(name) || !slices.Equal(pool.Spec.Shards, shards) {
		return fmt.Errorf("the pool has group %s and shards %v, want %v", pool.Spec.Group, pool.Spec.Shards, shards)
	}
	machinePool, err := env.MachinePools().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got := ptr.Deref(machinePool.Spec.Replicas, -1); got != replicas {
		return fmt.Errorf("the MachinePool has %d replicas, want %d", got, replicas)
	}
	return nil
}

// creations returns the operator's creations of pools and MachinePools since from.
func creations(t *testing.T, from controlplane.Position) []controlplane.Write {
	t.Helper()
	return env.OperatorWrites(t, from, func(w controlplane.Write) bool {
		return w.Verb == "create" && (w.Resource == "nstancemachinepools" || w.Resource == "machinepools")
	})
}

// configureGroups adds groups to the configuration files of the servers, sizes by group
// and shard, and waits until the servers have them. The returned function removes the
// groups and deletes their pools.
func configureGroups(t *testing.T, groups map[string]map[string]int32) (remove func()) {
	t.Helper()
	var names []string
	for name, sizes := range groups {
		names = append(names, name)
		for shard, size := range sizes {
			configureGroup(t, shard, func(configured map[string]installation.Group) { configured[name] = installation.Group{Size: size} })
		}
	}
	for name, sizes := range groups {
		for shard, size := range sizes {
			testcluster.Eventually(t, time.Minute, "the server has the group", func(ctx context.Context) error {
				return staticSize(ctx, shard, name, size)
			})
		}
	}
	return func() {
		t.Helper()
		// A static pool that is deleted is imported again. Without the
		// configuration it is like any other.
		for name, sizes := range groups {
			for shard := range sizes {
				configureGroup(t, shard, func(configured map[string]installation.Group) { delete(configured, name) })
			}
		}
		for _, name := range names {
			testcluster.Eventually(t, time.Minute, name+" is not static any more", func(ctx context.Context) error {
				pool, err := env.NstanceMachinePool(ctx, name)
				if apierrors.IsNotFound(err) {
					return nil
				}
				if err == nil && (pool.Status.IsStatic == nil || *pool.Status.IsStatic) {
					err = errors.New("it is static")
				}
				return err
			})
		}
		deletePools(t, names...)
	}
}

// configureGroup changes the static groups of one server.
func configureGroup(t *testing.T, shard string, change func(map[string]installation.Group)) {
	t.Helper()
	env.Reconfigure(t, shard, func(s *installation.Shard) {
		if s.Groups == nil {
			s.Groups = map[string]installation.Group{}
		}
		change(s.Groups)
	})
}

// staticSize succeeds when a server has a static group of that size.
func staticSize(ctx context.Context, shard, name string, size int32) error {
	group, err := env.Group(ctx, shard, name)
	if err == nil && (!group.GetIsStatic() || group.GetActualSize() != size) {
		err = fmt.Errorf("shard %s has %v", shard, group)
	}
	return err
}

// A user who puts an imported pool and its MachinePool under the control of a repository applies
// them with the values that he wants, and is in no conflict with the operator that created them.
func TestFirstApplyAfterImport(t *testing.T) {
	const name = "adopted"
	upsertDirectly(t, "us-west-2b", name, 2)
	t.Cleanup(func() { deletePools(t, name) })
	testcluster.Eventually(t, time.Minute, "the group is imported", func(ctx context.Context) error {
		return imported(ctx, name, 2, "us-west-2b")
	})
	testcluster.Eventually(t, time.Minute, "a repository takes over", func(ctx context.Context) error {
		unforced := metav1.ApplyOptions{FieldManager: "repository"}
		pool := testcluster.NewNstanceMachinePool(name, "us-west-2a", "us-west-2b")
		return errors.Join(tryApply(ctx, pool, unforced), tryApply(ctx, testcluster.NewMachinePool(name, 4), unforced))
	})
	testcluster.Eventually(t, 2*time.Minute, "the pool has what the repository wants", func(ctx context.Context) error {
		return errors.Join(env.SizesAre(ctx, name, 2, 2), env.Running(ctx, name, 4))
	})
}

// The import of a group of one shard writes three objects and the status of two of them, each
// once, hands the two specs over to the users, and records one event. The pool may have a status
// before its shard group.
func TestWritesOfAnImport(t *testing.T) {
	const name = "frugal"
	from := env.AuditEnd(t)
	upsertDirectly(t, "us-west-2b", name, 0)
	testcluster.Eventually(t, time.Minute, "the pool is ready", func(ctx context.Context) error {
		return conditionIs(ctx, name, v1beta1.ConditionReady, metav1.ConditionTrue)
	})
	t.Cleanup(func() {
		err := env.MachinePools().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
		untilNothingIsLeft(t, name)
	})
	testcluster.Eventually(t, time.Minute, "Cluster API runs the MachinePool", func(ctx context.Context) error { return env.Running(ctx, name, 0) })
	var writes []controlplane.Write
	var count map[string]int
	testcluster.Eventually(t, time.Minute, "the specs are handed over", func(context.Context) error {
		// Cluster API may change an object before the operator hands it over, whose write is a conflict then.
		writes = env.OperatorWrites(t, from, func(w controlplane.Write) bool {
			return strings.HasPrefix(w.Name, name) && w.Code != http.StatusConflict
		})
		count = map[string]int{}
		for _, w := range writes {
			count[strings.Trim(w.Resource+"/"+w.Subresource, "/")]++
		}
		if count["nstancemachinepools"] < 2 || count["machinepools"] < 2 {
			return fmt.Errorf("%v", count)
		}
		return nil
	})
	want := map[string]int{
		"nstancemachinepools": 2, "machinepools": 2, "nstanceshardgroups": 1, "events": 1,
		"nstanceshardgroups/status": 1, "nstancemachinepools/status": 1,
	}
	if count["nstancemachinepools/status"] == 2 {
		want["nstancemachinepools/status"] = 2
	}
	if !maps.Equal(count, want) {
		t.Errorf("%v, want %v:%s", count, want, testcluster.Describe(writes))
	}
}
