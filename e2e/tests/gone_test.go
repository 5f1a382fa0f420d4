// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// deletePool removes a pool and waits until nothing of it is left.
func deletePool(t *testing.T, name string) {
	t.Helper()
	// The webhook may be a moment behind a pool that was static.
	eventually(t, time.Minute, "deleting "+name+" is accepted", func(ctx context.Context) error {
		err := env.capi.MachinePools(nstance.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	untilNothingIsLeft(t, name)
}

// untilNothingIsLeft waits until a pool is gone from everywhere.
func untilNothingIsLeft(t *testing.T, name string) {
	t.Helper()
	eventually(t, 3*time.Minute, "nothing of "+name+" is left", func(ctx context.Context) error {
		_, err := getPool(ctx, name)
		if err == nil {
			err = errors.New("the pool is left")
		} else if apierrors.IsNotFound(err) {
			err = nil
		}
		errs := []error{err, gone(ctx, name)}
		nodes, err := env.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelGroup + "=" + name})
		if err == nil && len(nodes.Items) > 0 {
			err = fmt.Errorf("%d Nodes are left", len(nodes.Items))
		}
		errs = append(errs, err)
		for _, shard := range shardIDs {
			errs = append(errs, withoutGroup(ctx, t, shard, name))
		}
		return errors.Join(errs...)
	})
}

// withoutGroup succeeds when a shard's server does not list a group.
func withoutGroup(ctx context.Context, t *testing.T, shard, name string) error {
	connection, err := env.n.Dial(shard)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	list, err := nstancev1.NewOperatorServiceClient(connection).ListGroups(ctx, &emptypb.Empty{})
	if err != nil {
		return err
	}
	for _, group := range list.GetGroups() {
		if group.GetKey() == name {
			return fmt.Errorf("shard %s lists the group: %v", shard, group)
		}
	}
	return nil
}

// everythingIsGone fails the test when anything is left in the namespace of the
// kinds that pools are made of.
func everythingIsGone(t *testing.T) {
	t.Helper()
	infrastructure := env.nstance.InfrastructureV1beta1()
	pools, err := infrastructure.NstanceMachinePools(nstance.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	groups, err := infrastructure.NstanceShardGroups(nstance.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	machinePools, err := env.capi.MachinePools(nstance.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
