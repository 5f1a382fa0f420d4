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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/instance"
)

// deletePools deletes pools and waits until nothing of them is left.
func deletePools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		// The webhook may still consider a pool static that is not any more.
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
