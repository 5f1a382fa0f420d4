// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
)

// poolChange changes the MachinePool and the pool that a test creates.
type poolChange func(*clusterv1.MachinePool, *v1beta1.NstanceMachinePool)

// notScaled removes the annotations that make a pool a node group of the autoscaler.
func notScaled(machinePool *clusterv1.MachinePool, _ *v1beta1.NstanceMachinePool) {
	machinePool.Annotations = nil
}

// createPool creates a pool on all shards but the old one that the autoscaler scales,
// with a group of the same name, and deletes it at the end of the test.
func createPool(t testing.TB, name string, replicas int32, changes ...poolChange) nodeGroup {
	t.Helper()
	t.Cleanup(func() { deletePool(t, name) })
	return createLastingPool(t, name, replicas, changes...)
}

// createLastingPool creates a pool that is not deleted.
func createLastingPool(t testing.TB, name string, replicas int32, changes ...poolChange) nodeGroup {
	t.Helper()
	machinePool, pool := testcluster.NewMachinePool(name, replicas), testcluster.NewNstanceMachinePool(name, shardIDs...)
	machinePool.Annotations = map[string]string{clusterv1.AutoscalerMinSizeAnnotation: "0", clusterv1.AutoscalerMaxSizeAnnotation: "1000"}
	for _, change := range changes {
		change(machinePool, pool)
	}
	require.NoError(t, env.CreatePool(t.Context(), machinePool, pool))
	return nodeGroup{name}
}

// deletePool deletes a pool, if a test has not, and waits until nothing of it is left.
func deletePool(t testing.TB, name string) {
	t.Helper()
	err := env.MachinePools().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	testcluster.Eventually(t, timeout, "nothing of "+name+" is left", func(ctx context.Context) error { return deleted(ctx, name) })
}

// deleted succeeds when nothing of a pool is left.
func deleted(ctx context.Context, name string) error {
	var errs []error
	left := func(what string, count int, err error) {
		if err == nil && count > 0 {
			err = fmt.Errorf("%d %s are left", count, what)
		}
		errs = append(errs, err)
	}
	_, err := env.MachinePools().Get(ctx, name, metav1.GetOptions{})
	left("MachinePools", 1, err)
	_, err = env.NstanceMachinePools().Get(ctx, name, metav1.GetOptions{})
	left("NstanceMachinePools", 1, err)
	for i, err := range errs {
		if apierrors.IsNotFound(err) {
			errs[i] = nil
		}
	}
	groups, err := env.ShardGroups(ctx, name)
	left("NstanceShardGroups", len(groups), err)
	machines, err := machinesOf(ctx, name)
	left("Machines", len(machines), err)
	nstanceMachines, err := nstanceMachinesOf(ctx, name)
	left("NstanceMachines", len(nstanceMachines), err)
	nodes, err := env.Nodes(ctx, name)
	left("Nodes", len(nodes), err)
	for _, shard := range env.ShardIDs {
		group, err := groupOn(ctx, shard, name)
		if err == nil && group != nil {
			err = fmt.Errorf("shard %s lists the group: %v", shard, group)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func patchPool(t testing.TB, name, patch string) {
	t.Helper()
	_, err := env.NstanceMachinePools().Patch(t.Context(), name, mergePatch, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

// annotatePool sets an annotation of the MachinePool to a JSON value.
func annotatePool(t testing.TB, name, annotation, value string) {
	t.Helper()
	env.PatchMachinePool(t, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value))
}

// inPool selects objects by Cluster API's label of their MachinePool.
func inPool(name string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: clusterv1.MachinePoolNameLabel + "=" + capi.LabelValue(name)}
}

func machinesOf(ctx context.Context, pool string) ([]clusterv1.Machine, error) {
	list, err := env.Machines().List(ctx, inPool(pool))
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func nstanceMachinesOf(ctx context.Context, pool string) ([]v1beta1.NstanceMachine, error) {
	list, err := env.NstanceMachines().List(ctx, inPool(pool))
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
