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

// The steps of an order of creation: a user creates the pool, a user creates a MachinePool without
// replicas, and the operator creates the missing objects.
const (
	userPool        = "pool"
	userMachinePool = "MachinePool"
	byOperator      = "operator"
)

// In every order of creation, a group keeps its instances on the servers, and the
// MachinePool gets their number, unless a user sets it.
func TestCreationOrder(t *testing.T) {
	orders := [][]string{
		{userPool, userMachinePool, byOperator},
		{userPool, byOperator, userMachinePool},
		{userMachinePool, userPool, byOperator},
		{userMachinePool, byOperator, userPool},
		{byOperator, userPool, userMachinePool},
		{byOperator, userMachinePool, userPool},
	}
	const edited, explicit = "edited", "explicit"
	groups := []string{edited, explicit}
	for i := range orders {
		groups = append(groups, orderedGroup(i))
	}
	testcluster.Stop(t, env.OperatorProcess())
	losses := map[string]*testcluster.LossChecker{}
	for _, group := range groups {
		createUneven(t, group)
		losses[group] = env.NewLossChecker(t, group)
	}
	t.Cleanup(func() { deletePools(t, groups...) })

	// All orders run at once: they differ in the steps before and after the start of the operator.
	for i, order := range orders {
		for _, who := range order[:slices.Index(order, byOperator)] {
			applyAs(t, who, orderedGroup(i))
		}
	}
	applyAs(t, userMachinePool, edited)
	env.PatchMachinePool(t, edited, `{"spec":{"template":{"metadata":{"labels":{"edited":"yes"}}}}}`)
	applyAs(t, userPool, edited)
	require.NoError(t, tryApply(t.Context(), testcluster.NewMachinePool(explicit, 2), kubectl))
	applyAs(t, userPool, explicit)
	testcluster.Start(t, env.OperatorProcess())
	for i := range orders {
		group := orderedGroup(i)
		testcluster.Eventually(t, 2*time.Minute, group+" is imported", func(ctx context.Context) error { return keptUneven(ctx, group) })
	}
	for i, order := range orders {
		for _, who := range order[slices.Index(order, byOperator)+1:] {
			applyAs(t, who, orderedGroup(i))
		}
	}

	expectUnchanged := func(t *testing.T, group string) {
		t.Helper()
		testcluster.Eventually(t, 2*time.Minute, "the group is unchanged", func(ctx context.Context) error {
			return errors.Join(keptUneven(ctx, group), env.Running(ctx, group, 5))
		})
		losses[group].ExpectNone(t)
	}
	for i, order := range orders {
		t.Run(strings.Join(order, ", "), func(t *testing.T) { expectUnchanged(t, orderedGroup(i)) })
	}
	// Replicas that Cluster API has defaulted do not count as set by a user, even if a user edits
	// another field of the MachinePool before the import.
	t.Run("editing other fields keeps the replicas", func(t *testing.T) { expectUnchanged(t, edited) })
	// Replicas that a user sets are used, also when they are fewer.
	t.Run("explicit replicas count", func(t *testing.T) {
		testcluster.Eventually(t, 2*time.Minute, "the pool has the user's replicas", func(ctx context.Context) error {
			return errors.Join(imported(ctx, explicit, 2, "us-west-2a", "us-west-2b"), env.SizesAre(ctx, explicit, 1, 1), env.Running(ctx, explicit, 2))
		})
	})
}

// orderedGroup is the group of an order of creation.
func orderedGroup(order int) string { return fmt.Sprintf("order-%d", order) }

// The same holds if all objects are created at the same moment.
func TestCreationAtOnce(t *testing.T) {
	t.Parallel()
	const group = "at-once"
	createUneven(t, group)
	t.Cleanup(func() { deletePools(t, group) })
	losses := env.NewLossChecker(t, group)
	losses.IgnoreOtherGroups = true
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

// createUneven creates a group of 1 and 4 instances on the servers only.
func createUneven(t *testing.T, group string) {
	t.Helper()
	upsertDirectly(t, "us-west-2a", group, 1)
	upsertDirectly(t, "us-west-2b", group, 4)
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
		return tryApply(ctx, testcluster.NewNstanceMachinePool(group, "us-west-2a", "us-west-2b"), kubectl)
	}
	machinePool := testcluster.NewMachinePool(group, 0)
	machinePool.Spec.Replicas = nil
	return tryApply(ctx, machinePool, kubectl)
}

// kubectl are the options of kubectl apply --server-side --force-conflicts.
var kubectl = metav1.ApplyOptions{FieldManager: "kubectl", Force: true}

// tryApply applies an object on the server's side.
func tryApply(ctx context.Context, object runtime.Object, options metav1.ApplyOptions) error {
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
		Apply(ctx, applied.GetName(), applied, options)
	return err
}
