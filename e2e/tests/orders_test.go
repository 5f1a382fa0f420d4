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

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Who makes what, in which order: a user a pool, a user a MachinePool that says
// no number, the operator whatever is missing.
const (
	userPool        = "pool"
	userMachinePool = "MachinePool"
	theOperator     = "operator"
)

// Whoever is first, a group keeps the instances that it has on the servers, and
// the MachinePool gets their number.
func TestOrdersOfCreation(t *testing.T) {
	orders := [][]string{
		{userPool, userMachinePool, theOperator},
		{userPool, theOperator, userMachinePool},
		{userMachinePool, userPool, theOperator},
		{userMachinePool, theOperator, userPool},
		{theOperator, userPool, userMachinePool},
		{theOperator, userMachinePool, userPool},
	}
	stopOperator(t)
	groups := make([]string, len(orders))
	witnesses := make([]*witness, len(orders))
	for i := range orders {
		groups[i] = fmt.Sprintf("order-%d", i)
		makeUneven(t, groups[i])
		witnesses[i] = newWitness(t, groups[i])
	}

	// All orders at once: they differ in what is before and after the operator.
	for i, order := range orders {
		for _, who := range order[:slices.Index(order, theOperator)] {
			applyAs(t, who, groups[i])
		}
	}
	mustStart(t, env.cp.Component(env.operator.Component))
	for _, group := range groups {
		eventually(t, 2*time.Minute, group+" is taken over", func(ctx context.Context) error { return keptUneven(ctx, group) })
	}
	for i, order := range orders {
		for _, who := range order[slices.Index(order, theOperator)+1:] {
			applyAs(t, who, groups[i])
		}
	}

	for i, order := range orders {
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			eventually(t, 2*time.Minute, "the group is as it was", func(ctx context.Context) error {
				return errors.Join(keptUneven(ctx, groups[i]), running(ctx, groups[i], 5))
			})
			witnesses[i].sawNoLoss(t)
		})
	}
}

// The same with everybody at the same moment.
func TestCreationAtOnce(t *testing.T) {
	const group = "at-once"
	makeUneven(t, group)
	w := newWitness(t, group)
	var users errgroup.Group
	for _, who := range []string{userPool, userMachinePool} {
		users.Go(func() error { return tryApplyAs(t.Context(), who, group) })
	}
	if err := users.Wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the group is as it was", func(ctx context.Context) error {
		return errors.Join(keptUneven(ctx, group), running(ctx, group, 5))
	})
	w.sawNoLoss(t)
}

// A number that Cluster API filled in stays nobody's when the MachinePool is
// edited in some other field before it is taken over.
func TestEditingOtherFieldsAsksForNoNumber(t *testing.T) {
	const group = "edited"
	stopOperator(t)
	makeUneven(t, group)
	w := newWitness(t, group)
	applyAs(t, userMachinePool, group)
	patchMachinePool(t, group, `{"spec":{"template":{"metadata":{"labels":{"edited":"yes"}}}}}`)
	applyAs(t, userPool, group)
	mustStart(t, env.cp.Component(env.operator.Component))
	eventually(t, 2*time.Minute, "the group is as it was", func(ctx context.Context) error {
		return errors.Join(keptUneven(ctx, group), running(ctx, group, 5))
	})
	w.sawNoLoss(t)
}

// A number that a user writes down counts, also a small one.
func TestExplicitReplicasCount(t *testing.T) {
	const group = "explicit"
	stopOperator(t)
	makeUneven(t, group)
	if err := tryApply(t.Context(), newMachinePool(group, 2)); err != nil {
		t.Fatal(err)
	}
	applyAs(t, userPool, group)
	mustStart(t, env.cp.Component(env.operator.Component))
	eventually(t, 2*time.Minute, "the user's number is in force", func(ctx context.Context) error {
		return errors.Join(imported(ctx, group, 2, "us-west-2a", "us-west-2b"), sizesAre(ctx, group, 1, 1), running(ctx, group, 2))
	})
}

// makeUneven makes a group of 1 and 4 instances that only the servers know of.
func makeUneven(t *testing.T, group string) {
	t.Helper()
	upsertBehind(t, "us-west-2a", group, 1)
	upsertBehind(t, "us-west-2b", group, 4)
	t.Cleanup(func() { deletePool(t, group) })
}

// keptUneven succeeds when the group has a pool and a MachinePool, and its
// instances are where they were.
func keptUneven(ctx context.Context, group string) error {
	return errors.Join(imported(ctx, group, 5, "us-west-2a", "us-west-2b"), sizesAre(ctx, group, 1, 4))
}

func applyAs(t *testing.T, who, group string) {
	t.Helper()
	if err := tryApplyAs(t.Context(), who, group); err != nil {
		t.Fatal(err)
	}
}

func tryApplyAs(ctx context.Context, who, group string) error {
	if who == userPool {
		return tryApply(ctx, newPool(group, "us-west-2a", "us-west-2b"))
	}
	machinePool := newMachinePool(group, 0)
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
	_, err = env.dynamic.Resource(resource).Namespace(nstance.Namespace).
		Apply(ctx, applied.GetName(), applied, metav1.ApplyOptions{FieldManager: "kubectl", Force: true})
	return err
}
