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

	"nstance.dev/operator/e2e/testcluster"
)

// deletePool deletes a pool and waits until nothing of it is left.
func deletePool(t *testing.T, name string) {
	t.Helper()
	// The webhook may still consider a pool static that is not any more.
	testcluster.Eventually(t, time.Minute, "deleting "+name+" is accepted", func(ctx context.Context) error {
		err := env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	untilNothingIsLeft(t, name)
}

// untilNothingIsLeft waits until all objects of a pool, its Nodes and its groups on the
// shards are deleted.
func untilNothingIsLeft(t *testing.T, name string) {
	t.Helper()
	testcluster.Eventually(t, 3*time.Minute, "nothing of "+name+" is left", func(ctx context.Context) error {
		_, err := env.NstanceMachinePool(ctx, name)
		errs := []error{testcluster.NotFound("the pool", err), env.PoolDeleted(ctx, name)}
		nodes, err := env.Nodes(ctx, name)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("%d Nodes are left", len(nodes))
		}
		errs = append(errs, err)
		for _, shard := range shardIDs {
			errs = append(errs, withoutGroup(ctx, shard, name))
		}
		return errors.Join(errs...)
	})
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
}
