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
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Which objects are created in which order: a user creates the pool, a user creates a
// MachinePool without replicas, and the operator creates what is missing.
const (
	userPool        = "pool"
	userMachinePool = "MachinePool"
	byOperator      = "operator"
)

// In every order of creation, a group keeps its instances on the servers, and the
// MachinePool gets their number.
func TestCreationOrder(t *testing.T) {
	orders := [][]string{
		{userPool, userMachinePool, byOperator},
		{userPool, byOperator, userMachinePool},
		{userMachinePool, userPool, byOperator},
		{userMachinePool, byOperator, userPool},
		{byOperator, userPool, userMachinePool},
		{byOperator, userMachinePool, userPool},
	}
	testcluster.Stop(t, env.OperatorProcess())
	groups := make([]string, len(orders))
	losses := make([]*testcluster.LossChecker, len(orders))
	for i := range orders {
		groups[i] = fmt.Sprintf("order-%d", i)
		createUneven(t, groups[i])
		losses[i] = env.NewLossChecker(t, groups[i])
	}

	// All orders at once: they differ in what is before and after the operator.
	for i, order := range orders {
		for _, who := range order[:slices.Index(order, byOperator)] {
			applyAs(t, who, groups[i])
		}
	}
	testcluster.Start(t, env.OperatorProcess())
	for _, group := range groups {
		testcluster.Eventually(t, 2*time.Minute, group+" is imported", func(ctx context.Context) error { return keptUneven(ctx, group) })
	}
	for i, order := range orders {
		for _, who := range order[slices.Index(order, byOperator)+1:] {
			applyAs(t, who, groups[i])
		}
	}

	for i, order := range orders {
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			testcluster.Eventually(t, 2*time.Minute, "the group is unchanged", func(ctx context.Context) error {
				return errors.Join(keptUneven(ctx, groups[i]), env.Running(ctx, groups[i], 5))
			})
			losses[i].ExpectNone(t)
		})
	}
}

// The same with all objects created at the same moment.
func TestCreationAtOnce(t *testing.T) {
	const group = "at-once"
	createUneven(t, group)
	losses := env.NewLossChecker(t, group)
	var users errgroup.Group
	for _, who := range []string{userPool, userMachinePool} {
		users.Go(func() error { return tryApplyAs(t.Context(), who, group) })
	}
	require.NoError(t, users.Wait())
	testcluster.Eventually(t, 2*time.Minute, "the group is unchanged", func(ctx context.Context) error {
		return errors.Join(keptUneven(ctx, group), env.Running(ctx, group, 5))
	})
	losses.ExpectNone(t)
}

// Replicas that Cluster API defaulted are not a user's when the MachinePool is edited in
// another field before the import.
func TestEditingOtherFieldsKeepsReplicas(t *testing.T) {
	const group = "edited"
	testcluster.Stop(t, env.OperatorProcess())
	createUneven(t, group)
	losses := env.NewLossChecker(t, group)
	applyAs(t, userMachinePool, group)
	env.PatchMachinePool(t, group, `{"spec":{"template":{"metadata":{"labels":{"edited":"yes"}}}}}`)
	applyAs(t, userPool, group)
	testcluster.Start(t, env.OperatorProcess())
	testcluster.Eventually(t, 2*time.Minute, "the group is unchanged", func(ctx context.Context) error {
		return errors.Join(keptUneven(ctx, group), env.Running(ctx, group, 5))
	})
	losses.ExpectNone(t)
}

// Replicas that a user sets are used, also when they are fewer.
func TestExplicitReplicasCount(t *testing.T) {
	const group = "explicit"
	testcluster.Stop(t, env.OperatorProcess())
	createUneven(t, group)
	require.NoError(t, tryApply(t.Context(), testcluster.NewMachinePool(group, 2)))
	applyAs(t, userPool, group)
	testcluster.Start(t, env.OperatorProcess())
	testcluster.Eventually(t, 2*time.Minute, "the pool has the user's replicas", func(ctx context.Context) error {
		return errors.Join(imported(ctx, group, 2, "us-west-2a", "us-west-2b"), env.SizesAre(ctx, group, 1, 1), env.Running(ctx, group, 2))
	})
}

// createUneven creates a group of 1 and 4 instances on the servers only.
func createUneven(t *testing.T, group string) {
	t.Helper()
	upsertDirectly(t, "us-west-2a", group, 1)
	upsertDirectly(t, "us-west-2b", group, 4)
	t.Cleanup(func() { deletePool(t, group) })
}

// keptUneven succeeds when the group has a pool and a MachinePool, and unchanged sizes.
func keptUneven(ctx context.Context, group string) error {
	return errors.Join(imported(ctx, group, 5, "us-west-2a", "us-west-2b"), env.SizesAre(ctx, group, 1, 4))
}

func applyAs(t *testing.T, who, group string) {
	t.Helper()
	require.NoError(t, tryApplyAs(t.Context(), who, group))
}

func tryApplyAs(ctx context.Context, who, group string) error {
	if who == userPool {
		return tryApply(ctx, testcluster.NewNstanceMachinePool(group, "us-west-2a", "us-west-2b"))
	}
	machinePool := testcluster.NewMachinePool(group, 0)
	machinePool.Spec.Replicas = nil
	return tryApply(ctx, machinePool)
}

// tryApply does what kubectl apply --server-side does.
func tryApply(ctx context.Context, object runtime.Object) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	delete(fields, "status")
	applied := &unstructured.Unstructured{Object: fields}
	var resource schema.GroupVersionResource
	switch object.(type) {
	case *v1beta1.NstanceMachinePool:
		resource = v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools")
		applied.SetKind("NstanceMachinePool")
	case *clusterv1.MachinePool:
		resource = clusterv1.GroupVersion.WithResource("machinepools")
		applied.SetKind("MachinePool")
	default:
		return fmt.Errorf("cannot apply a %T", object)
	}
	applied.SetAPIVersion(resource.GroupVersion().String())
	_, err = env.Dynamic.Resource(resource).Namespace(installation.Namespace).
		Apply(ctx, applied.GetName(), applied, metav1.ApplyOptions{FieldManager: "kubectl", Force: true})
	return err
}
