// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

var shardIDs = []string{"us-west-2a", "us-west-2b"}

// servers are shard servers with their instances in memory, by shard.
type servers map[string]*servertest.Server

// newServers starts the servers, and has the operator connect to them during the test.
func newServers(t *testing.T) servers {
	t.Helper()
	t.Cleanup(env.SaveConfigMap(t, "nstance-shards"))
	started := servers{}
	for _, id := range shardIDs {
		started[id] = servertest.Start(t, servertest.Options{
			Cluster: installation.ClusterID, Shard: id, Authority: env.Installation.Authority(),
		})
	}
	env.EditShards(t, func(data map[string]string) {
		for id, server := range started {
			data[id] = server.Addr
		}
	})
	return started
}

// group returns a group as the server of a shard reports it, nil if the server does not report it.
func (s servers) group(t *testing.T, shard, name string) *nstancev1.GroupStatus {
	t.Helper()
	list, err := s[shard].Operator(installation.Tenant).ListGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	for _, group := range list.GetGroups() {
		if group.GetKey() == name {
			return group
		}
	}
	return nil
}

// instances returns the ids of all instances.
func (s servers) instances(t *testing.T) []string {
	t.Helper()
	ids, err := s.listInstances(t.Context())
	require.NoError(t, err)
	return ids
}

func (s servers) listInstances(ctx context.Context) (ids []string, err error) {
	for _, server := range s {
		nodes, err := server.Kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, node := range nodes.Items {
			ids = append(ids, node.Name)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// untilInstances waits until there are so many instances.
func (s servers) untilInstances(t *testing.T, count int) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, fmt.Sprintf("there are %d instances", count), func(ctx context.Context) error {
		ids, err := s.listInstances(ctx)
		if err == nil && len(ids) != count {
			err = fmt.Errorf("there are %v", ids)
		}
		return err
	})
}

// After etcd was restored, sizes that were raised, pools that were created and pools that
// were deleted since the backup neither terminate nor create an instance, and an
// administrator decides about each, by the steps of the procedure.
func TestEtcdRestore(t *testing.T) {
	servers := newServers(t)
	const grown, returned, created, deleted, steady = "grown", "returned", "created", "deleted", "steady"
	t.Cleanup(func() { env.DeletePools(t, grown, returned, created, steady) })
	for _, name := range []string{grown, returned, deleted, steady} {
		require.NoError(t, env.CreatePoolOn(t.Context(), name, 4, shardIDs...))
	}
	for _, name := range []string{grown, returned, deleted, steady} {
		untilSizes(t, name, 2, 2)
	}
	standby := env.Component(env.RunStandby(t, testcluster.ShortLease...).Component)
	leader := env.OperatorProcess()

	backup := env.BackUpEtcd(t)
	for _, name := range []string{grown, returned} {
		env.Scale(t, name, 12)
		untilSizes(t, name, 6, 6)
	}
	require.NoError(t, env.CreatePoolOn(t.Context(), created, 4, shardIDs...))
	untilSizes(t, created, 2, 2)
	env.DeleteMachinePool(t, deleted)
	testcluster.Eventually(t, time.Minute, "the pool is deleted", func(ctx context.Context) error { return env.PoolDeleted(ctx, deleted) })
	before := servers.instances(t)
	require.Len(t, before, 12+12+4+4)

	p := env.StartProcedure(t, "Restore etcd", map[string]string{
		"NAMESPACE": installation.Namespace,
		"KEEP":      grown,
		"REPLICAS":  "12",
		"REPLACE":   v1beta1.ShardGroupName(returned, shardIDs[0]) + " " + v1beta1.ShardGroupName(returned, shardIDs[1]),
		"DELETED":   deleted,
	})
	p.Do("Restore etcd", func() {
		env.RestoreEtcd(t, backup)
		// Neither process acts on its caches from before; a Deployment starts them again.
		for _, process := range []*controlplane.Component{leader, standby} {
			testcluster.UntilExited(t, process)
		}
		log, err := os.ReadFile(standby.LogPath())
		require.NoError(t, err)
		assert.Contains(t, string(log), "the API server was restored from a backup")
		testcluster.Start(t, leader)
		testcluster.Start(t, standby)
	})
	for _, name := range []string{grown, returned} {
		untilAhead(t, name, "size 6")
	}
	untilAhead(t, deleted, "")
	testcluster.Eventually(t, 2*time.Minute, "the pool of later is imported", func(ctx context.Context) error {
		machinePool, err := env.MachinePools().Get(ctx, created, metav1.GetOptions{})
		if err == nil && *machinePool.Spec.Replicas != 4 {
			err = fmt.Errorf("it has %d replicas", *machinePool.Spec.Replicas)
		}
		return err
	})
	p.Run("List the shard groups that the shards are ahead of")
	// A pool that is not affected is scaled as before.
	env.Scale(t, steady, 6)
	untilSizes(t, steady, 3, 3)
	after := servers.instances(t)
	assert.Len(t, after, len(before)+2)
	assert.Subset(t, after, before, "instances were terminated")
	for _, id := range shardIDs {
		assert.EqualValues(t, 6, servers.group(t, id, grown).GetSize())
		assert.EqualValues(t, 6, servers.group(t, id, returned).GetSize())
		assert.Nil(t, servers.group(t, id, deleted))
	}

	p.Run("To keep what the shards have")
	untilSizes(t, grown, 6, 6)
	untilReady(t, grown)
	assert.ElementsMatch(t, after, servers.instances(t), "instances")
	p.Run("To give the shard what the shard group has")
	untilSizes(t, returned, 2, 2)
	left := servers.instances(t)
	assert.Len(t, left, len(after)-8)
	assert.Subset(t, after, left, "instances were created")
	p.Run("Delete once more")
	require.NoError(t, env.PoolDeleted(t.Context(), deleted))
	assert.ElementsMatch(t, left, servers.instances(t), "instances")
	env.Scale(t, returned, 6)
	untilSizes(t, returned, 3, 3)
	env.Scale(t, grown, 10)
	untilSizes(t, grown, 5, 5)
}

// untilSizes waits until the shard groups of a pool have these sizes and as many
// instances.
func untilSizes(t *testing.T, name string, sizes ...int32) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, name+" is scaled", func(ctx context.Context) error { return env.SizesAre(ctx, name, sizes...) })
}

// untilAhead waits until a pool and each of its shard groups have the reason ShardAhead.
func untilAhead(t *testing.T, name, message string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, name+" has ShardAhead", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		conditions := map[string][]metav1.Condition{"the pool": pool.Status.Conditions}
		groups, err := env.ShardGroups(ctx, name)
		if err != nil || len(groups) == 0 {
			return errors.Join(err, fmt.Errorf("%d shard groups", len(groups)))
		}
		for _, group := range groups {
			conditions[group.Name] = group.Status.Conditions
		}
		for _, object := range slices.Sorted(maps.Keys(conditions)) {
			ready := meta.FindStatusCondition(conditions[object], v1beta1.ConditionReady)
			if ready == nil || ready.Reason != v1beta1.ReasonShardAhead || !strings.Contains(ready.Message, message) {
				return fmt.Errorf("%s has %+v", object, ready)
			}
		}
		return nil
	})
}

func untilReady(t *testing.T, name string) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, name+" is not behind", func(ctx context.Context) error {
		groups, err := env.ShardGroups(ctx, name)
		for _, group := range groups {
			if ready := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionReady); ready == nil || ready.Reason == v1beta1.ReasonShardAhead {
				err = errors.Join(err, fmt.Errorf("%s has %+v", group.Name, ready))
			}
		}
		return err
	})
}
