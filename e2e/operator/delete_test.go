// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/tier"
)

// Deleting a MachinePool or its NstanceMachinePool leaves nothing behind: no object, no
// group and no instance on a server, and no Node.
func TestDeletePool(t *testing.T) {
	t.Parallel()
	type deletion struct {
		name     string
		machines v1beta1.MachineMode
		remove   func(ctx context.Context, name string) error
	}
	deletions := []deletion{
		{name: "deleted-pool", remove: deleteNstanceMachinePool},
		{name: "deleted-with-machines", machines: v1beta1.MachineModeAlways, remove: deleteMachinePool},
	}
	if tier.Full() {
		deletions = append(deletions, deletion{name: "deleted-machinepool", remove: deleteMachinePool})
	}
	for _, deletion := range deletions {
		t.Run(deletion.name, func(t *testing.T) {
			t.Parallel()
			runPoolWith(t, deletion.name, 6, deletion.machines)
			require.NoError(t, deletion.remove(t.Context(), deletion.name))
			untilNothingIsLeft(t, deletion.name)
		})
	}
}

func deleteMachinePool(ctx context.Context, name string) error {
	return env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
}

func deleteNstanceMachinePool(ctx context.Context, name string) error {
	return env.NstanceMachinePools().Delete(ctx, name, metav1.DeleteOptions{})
}

// interruptedDeletion is the deletion of a pool that runs. It waits for a shard that does not
// respond.
func interruptedDeletion(name, shard string, remove func(ctx context.Context, name string) error) interrupted {
	return interrupted{
		name:   "deletion of " + name,
		change: func(t *testing.T) { require.NoError(t, remove(t.Context(), name)) },
		waits: func(t *testing.T) {
			untilWaiting(t, name, shard)
			if _, err := env.NstanceMachinePool(t.Context(), name); err != nil {
				t.Errorf("the pool did not wait: %v", err)
			}
		},
		completes: func(t *testing.T) { untilNothingIsLeft(t, name) },
	}
}

// interruptedDeletionAtOnce is the deletion of a pool before Cluster API has become its owner:
// Cluster API waits for the deletion, and is notified of it only as the owner. The pool is created
// by the call of this function.
func interruptedDeletionAtOnce(t *testing.T, name, shard string) interrupted {
	t.Helper()
	_, err := env.NstanceMachinePools().
		Create(t.Context(), testcluster.NewNstanceMachinePool(name, shardIDs...), metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "the shard groups are created", func(ctx context.Context) error {
		groups, err := env.ShardGroups(ctx, name)
		if err == nil && len(groups) < len(shardIDs) {
			err = fmt.Errorf("%d shard groups", len(groups))
		}
		return err
	})
	deletion := interruptedDeletion(name, shard, deleteNstanceMachinePool)
	poolWaits := deletion.waits
	deletion.waits = func(t *testing.T) {
		poolWaits(t)
		testcluster.Eventually(t, time.Minute, "Cluster API waits for the pool", func(ctx context.Context) error {
			machinePool, err := env.MachinePools().Get(ctx, name, metav1.GetOptions{})
			if err == nil && machinePool.Status.Phase != string(clusterv1.MachinePoolPhaseDeleting) {
				err = fmt.Errorf("the MachinePool's phase is %q", machinePool.Status.Phase)
			}
			return err
		})
	}
	return deletion
}

// The next operator completes a deletion during which the operator was killed.
func TestDeletePoolWithOperatorKilled(t *testing.T) {
	const name = "deleted-killed"
	runPool(t, name, 6, shardIDs...)
	operator := env.OperatorProcess()
	end := down(t, env.ShardServer(shardIDs[0]))
	require.NoError(t, env.MachinePools().Delete(t.Context(), name, metav1.DeleteOptions{}))
	untilWaiting(t, name, shardIDs[0])
	require.NoError(t, operator.Kill(t.Context()))
	env.ReleaseLease(t)
	end()
	testcluster.Start(t, operator)
	untilNothingIsLeft(t, name)
}

// When a shard is removed from a pool, its instances are deleted and replaced on the
// other shards.
func TestRemoveShardFromPool(t *testing.T) {
	t.Parallel()
	const name = "leaving"
	runPool(t, name, 6, shardIDs...)
	t.Cleanup(func() { deletePools(t, name) })
	removal := interruptedRemoval(name, shardIDs[1])
	removal.change(t)
	removal.completes(t)
}

// interruptedRemoval is the removal of a shard from a pool of six instances. The other
// shards do not wait for the shard.
func interruptedRemoval(name, leaving string) interrupted {
	others := slices.DeleteFunc(slices.Clone(shardIDs), func(id string) bool { return id == leaving })
	return interrupted{
		name: "removal of a shard from " + name,
		change: func(t *testing.T) {
			patch := fmt.Appendf(nil, `{"spec":{"shards":[%q,%q]}}`, others[0], others[1])
			_, err := env.NstanceMachinePools().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
			require.NoError(t, err)
		},
		waits: func(t *testing.T) {
			untilShardGroupWaits(t, name, leaving)
			testcluster.Eventually(t, time.Minute, "the other shards replace the instances", func(ctx context.Context) error {
				for _, shard := range others {
					group, err := env.ShardGroup(ctx, name, shard)
					if err != nil {
						return err
					}
					if group.Spec.Size != 3 || group.Status.Replicas == nil || *group.Status.Replicas != 3 {
						return fmt.Errorf("shard %s: size %d, status %+v", shard, group.Spec.Size, group.Status)
					}
				}
				return nil
			})
		},
		completes: func(t *testing.T) {
			testcluster.Eventually(t, 2*time.Minute, "the shard's instances are deleted", func(ctx context.Context) error {
				return errors.Join(env.SizesAre(ctx, name, 3, 3), env.Running(ctx, name, 6), withoutGroup(ctx, leaving, name))
			})
		},
	}
}

// A user cannot delete a shard group by mistake. A shard group whose deletion is confirmed is
// created again.
func TestDeleteShardGroup(t *testing.T) {
	t.Parallel()
	const name = "recreated"
	runPool(t, name, 3, shardIDs...)
	t.Cleanup(func() { deletePools(t, name) })
	deletion := interruptedRecreation(name, shardIDs[2])
	deletion.change(t)
	deletion.completes(t)
}

// interruptedRecreation is the deletion of a shard group of a pool of three instances.
func interruptedRecreation(name, shard string) interrupted {
	var before *v1beta1.NstanceShardGroup
	return interrupted{
		name: "deletion of a shard group of " + name,
		change: func(t *testing.T) {
			var err error
			before, err = env.ShardGroup(t.Context(), name, shard)
			require.NoError(t, err)
			object := deletable{"NstanceShardGroup", before.Name}
			require.NoError(t, forbidden(object.delete(t.Context(), "", metav1.DeleteOptions{}), "belongs to the operator", confirmDeletion))
			object.annotate(t, confirmDeletion, &before.Name)
			require.NoError(t, object.delete(t.Context(), "", metav1.DeleteOptions{}))
		},
		waits: func(t *testing.T) { untilShardGroupWaits(t, name, shard) },
		completes: func(t *testing.T) {
			testcluster.Eventually(t, 2*time.Minute, "the shard group is created again", func(ctx context.Context) error {
				after, err := env.ShardGroup(ctx, name, shard)
				if err == nil && after.UID == before.UID {
					err = errors.New("it is the same")
				}
				return errors.Join(err, env.Running(ctx, name, 3))
			})
		},
	}
}

// Deleting the Cluster deletes its pools. The operator creates an empty Cluster again,
// which every pool needs.
func TestDeleteCluster(t *testing.T) {
	// e2e/capi has the deletion with all shards up.
	for _, interrupted := range tier.Pick([]bool{true}, []bool{true, false}) {
		t.Run(fmt.Sprintf("a shard down %t", interrupted), func(t *testing.T) {
			name := fmt.Sprintf("with-cluster-%t", interrupted)
			runPool(t, name, 3, shardIDs...)
			before, err := env.Clusters().Get(t.Context(), installation.ClusterName, metav1.GetOptions{})
			require.NoError(t, err)
			end := func() {}
			if interrupted {
				end = down(t, env.ShardServer(shardIDs[0]))
			}
			require.NoError(t, env.Clusters().Delete(t.Context(), installation.ClusterName, metav1.DeleteOptions{}))
			if interrupted {
				untilWaiting(t, name, shardIDs[0])
				end()
			}
			untilNothingIsLeft(t, name)
			testcluster.Eventually(t, 3*time.Minute, "there is a Cluster again", func(ctx context.Context) error {
				after, err := env.Clusters().Get(ctx, installation.ClusterName, metav1.GetOptions{})
				if err == nil && after.UID == before.UID {
					err = fmt.Errorf("it is the same: %+v", after.Status.Conditions)
				}
				return err
			})
			expectNothingLeft(t)
		})
	}
}

// runPool creates a pool and waits until it runs.
func runPool(t *testing.T, name string, replicas int32, shards ...string) {
	t.Helper()
	require.NoError(t, env.CreatePoolOn(t.Context(), name, replicas, shards...))
	env.UntilRunning(t, name, replicas)
}

// runPools creates pools on all shards and waits until they run.
func runPools(t *testing.T, replicas map[string]int32) {
	t.Helper()
	for name, count := range replicas {
		require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, count))
	}
	for name, count := range replicas {
		env.UntilRunning(t, name, count)
	}
}

// runPoolWith is runPool on all shards, with Machines or without.
func runPoolWith(t *testing.T, name string, replicas int32, machines v1beta1.MachineMode) {
	t.Helper()
	pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
	pool.Spec.MachineMode = machines
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	env.UntilRunning(t, name, replicas)
	if machines == v1beta1.MachineModeAlways {
		untilMachines(t, name, int(replicas))
	}
}

// untilWaiting waits until only one shard group is left of a pool, and both report what they wait
// for.
func untilWaiting(t *testing.T, name, shard string) {
	t.Helper()
	untilShardGroupWaits(t, name, shard)
	testcluster.Eventually(t, 2*time.Minute, "the pool waits for the shard alone", func(ctx context.Context) error {
		groups, err := env.ShardGroups(ctx, name)
		if err != nil {
			return err
		}
		if len(groups) != 1 || groups[0].Spec.Shard != v1beta1.Identifier(shard) {
			return fmt.Errorf("%d shard groups are left", len(groups))
		}
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonDeleting)
	})
}

// untilShardGroupWaits waits until a shard group that is being deleted reports that its
// shard cannot be reached.
func untilShardGroupWaits(t *testing.T, name, shard string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the shard group reports what it waits for", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, name, shard)
		if err != nil {
			return err
		}
		conditions := group.Status.Conditions
		if ready := meta.FindStatusCondition(conditions, v1beta1.ConditionReady); ready != nil && ready.Message == "" {
			return errors.New("condition Ready has no message")
		}
		return errors.Join(
			testcluster.HasCondition(conditions, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonDeleting),
			testcluster.HasCondition(conditions, v1beta1.ConditionShardReachable, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable))
	})
}

// deletePools deletes pools and waits until nothing of them is left.
func deletePools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		// The webhook may still consider the pool static for a moment.
		testcluster.Eventually(t, time.Minute, "deleting "+name+" is accepted", func(ctx context.Context) error {
			err := env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	for _, name := range names {
		untilNothingIsLeft(t, name)
	}
}

// untilNothingIsLeft waits until all objects of a pool, its Nodes, and its groups and
// instances on the shards are deleted.
func untilNothingIsLeft(t *testing.T, name string) {
	t.Helper()
	testcluster.Eventually(t, 3*time.Minute, "nothing of "+name+" is left", func(ctx context.Context) error {
		_, err := env.NstanceMachinePool(ctx, name)
		errs := []error{testcluster.NotFound("the pool", err), env.PoolDeleted(ctx, name)}
		nodes, err := env.Nodes(ctx, name)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("%d Nodes are left", len(nodes))
		}
		errs = append(errs, err, withoutMachines(ctx, metav1.ListOptions{LabelSelector: clusterv1.MachinePoolNameLabel + "=" + name}))
		for _, shard := range shardIDs {
			errs = append(errs, withoutGroup(ctx, shard, name), withoutRecords(shard, name))
		}
		return errors.Join(errs...)
	})
}

// withoutMachines succeeds when there are neither Machines nor NstanceMachines.
func withoutMachines(ctx context.Context, options metav1.ListOptions) error {
	machines, machinesErr := env.Machines().List(ctx, options)
	nstanceMachines, err := env.NstanceMachines().List(ctx, options)
	if err := errors.Join(machinesErr, err); err != nil {
		return err
	}
	if len(machines.Items)+len(nstanceMachines.Items) > 0 {
		return fmt.Errorf("%d Machines and %d NstanceMachines are left", len(machines.Items), len(nstanceMachines.Items))
	}
	return nil
}

// withoutRecords succeeds when the storage of a shard has no instance of a group. A server
// removes the record of an instance when the provider has confirmed its deletion.
func withoutRecords(shard, group string) error {
	records, err := env.Installation.Records(shard)
	if err != nil {
		return err
	}
	records = slices.DeleteFunc(records, func(r instance.Record) bool { return r.Group != group })
	if len(records) > 0 {
		return fmt.Errorf("shard %s has %d instances of the group", shard, len(records))
	}
	return nil
}

// withoutGroup succeeds when a shard's server does not list a group.
func withoutGroup(ctx context.Context, shard, name string) error {
	group, err := env.Group(ctx, shard, name)
	if err == nil && group != nil {
		err = fmt.Errorf("shard %s lists the group: %v", shard, group)
	}
	return err
}

// expectNothingLeft fails the test when the namespace has any object of the kinds that
// pools consist of.
func expectNothingLeft(t *testing.T) {
	t.Helper()
	pools, err := env.NstanceMachinePools().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	groups, err := env.NstanceShardGroups().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	machinePools, err := env.MachinePools().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var left []string
	for _, pool := range pools.Items {
		left = append(left, "NstanceMachinePool "+pool.Name)
	}
	for _, group := range groups.Items {
		left = append(left, "NstanceShardGroup "+group.Name)
	}
	for _, machinePool := range machinePools.Items {
		left = append(left, "MachinePool "+machinePool.Name)
	}
	if slices.Sort(left); len(left) > 0 {
		t.Errorf("left in the namespace: %s", strings.Join(left, ", "))
	}
	require.NoError(t, withoutMachines(t.Context(), metav1.ListOptions{}))
}
