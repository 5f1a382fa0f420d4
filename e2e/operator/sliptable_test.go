// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// slip is a change by hand of an object of a pool, a cell of the table in
// docs/capi.md#slips-of-a-hand.
type slip struct {
	resource, name string
	// single: the object belongs to a Machine of its own, and not to an instance of the pool.
	single bool
	// do does it. The object is as it was before.
	do func(object slipped, ctx context.Context) error
	// rejection is a part of the error, "" if the API server accepts the change.
	rejection string
	// onlyWithout: the cell is for a stopped operator alone, because a running one acts between two
	// requests of the change.
	onlyWithout bool
	// after succeeds when Cluster API and the operator have repaired the object, or have deleted
	// the instances. Optional.
	after func(object slipped, ctx context.Context) error
	// deletes: the change requests the deletion of the instances.
	deletes bool
}

// slipped is the object of a cell, in the state before.
type slipped struct {
	pool   string
	client dynamic.ResourceInterface
	before *unstructured.Unstructured
}

func (s slipped) name() string { return s.before.GetName() }

func (s slipped) patch(ctx context.Context, patch string) error {
	_, err := s.client.Patch(ctx, s.name(), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (s slipped) deleted(ctx context.Context) error {
	return s.client.Delete(ctx, s.name(), metav1.DeleteOptions{})
}

// vanish deletes the object without its finalizers, while Cluster API does not see it.
func (s slipped) vanish(ctx context.Context) error {
	if err := s.patch(ctx, fmt.Sprintf(`{"metadata":{"finalizers":null,"annotations":{%q:"",%q:%q}}}`,
		clusterv1.PausedAnnotation, confirmDeletion, s.name())); err != nil {
		return err
	}
	if err := s.deleted(ctx); err != nil {
		return err
	}
	if err := s.patch(ctx, withoutFinalizers); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// copied creates a copy of the object with another name.
func (s slipped) copied(ctx context.Context) error {
	twin := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": s.before.GetAPIVersion(), "kind": s.before.GetKind(), "spec": s.before.DeepCopy().Object["spec"],
	}}
	twin.SetName(s.twin())
	twin.SetLabels(s.before.GetLabels())
	twin.SetAnnotations(s.before.GetAnnotations())
	_, err := s.client.Create(ctx, twin, metav1.CreateOptions{})
	return err
}

func (s slipped) twin() string { return s.name() + "-twin" }

// withoutTwin deletes the copy, and succeeds when it does not exist any more.
func (s slipped) withoutTwin(ctx context.Context) error {
	err := s.client.Delete(ctx, s.twin(), metav1.DeleteOptions{})
	return testcluster.NotFound("the copy", err)
}

// withoutInstances succeeds when the group and its instances are deleted.
func (s slipped) withoutInstances(ctx context.Context) error {
	return errors.Join(withoutGroup(ctx, shardIDs[0], s.pool), withoutRecords(shardIDs[0], s.pool))
}

// withoutMachine succeeds when the Machine of its own is deleted.
func (s slipped) withoutMachine(ctx context.Context) error {
	return env.MachineDeleted(ctx, s.name(), "")
}

// metadata returns an after that compares a part of the metadata.
func metadata(what string, part func(*unstructured.Unstructured) any) func(slipped, context.Context) error {
	return func(s slipped, ctx context.Context) error {
		now, err := s.client.Get(ctx, s.name(), metav1.GetOptions{})
		if err == nil && !assert.ObjectsAreEqual(part(s.before), part(now)) {
			err = fmt.Errorf("%s are %v, they were %v", what, part(now), part(s.before))
		}
		return err
	}
}

// The parts of the metadata that are repaired.
var (
	sameLabels     = metadata("labels", func(o *unstructured.Unstructured) any { return o.GetLabels() })
	sameFinalizers = metadata("finalizers", func(o *unstructured.Unstructured) any { return o.GetFinalizers() })
	sameOwners     = metadata("owners", func(o *unstructured.Unstructured) any {
		owners := map[types.UID]bool{}
		for _, owner := range o.GetOwnerReferences() {
			owners[owner.UID] = owner.Controller != nil && *owner.Controller
		}
		return owners
	})
)

// another succeeds when the object was created again.
func (s slipped) another(ctx context.Context) error {
	now, err := s.client.Get(ctx, s.name(), metav1.GetOptions{})
	if err == nil && now.GetUID() == s.before.GetUID() {
		err = errors.New("it is the same object")
	}
	return err
}

// patched returns a do that merges a patch.
func patched(patch string) func(slipped, context.Context) error {
	return func(s slipped, ctx context.Context) error { return s.patch(ctx, patch) }
}

const (
	edited            = `{"metadata":{"labels":{"example.com/note":"x"},"annotations":{"example.com/note":"x"}}}`
	withoutLabels     = `{"metadata":{"labels":null}}`
	withoutOwners     = `{"metadata":{"ownerReferences":null}}`
	withoutFinalizers = `{"metadata":{"finalizers":null}}`
)

// The resources of a pool.
const (
	machinePools, pools, shardGroups = "machinepools", "nstancemachinepools", "nstanceshardgroups"
	machines, nstanceMachines        = "machines", "nstancemachines"
)

// The resources that all pools share.
const clusters, nstanceClusters = "clusters", "nstanceclusters"

// resourceVersion returns the group and version of a resource.
func resourceVersion(resource string) schema.GroupVersion {
	switch resource {
	case machines, machinePools, clusters:
		return clusterv1.GroupVersion
	default:
		return v1beta1.SchemeGroupVersion
	}
}

// slips returns the table.
func slips() []slip {
	const byOperator, ofMachine = "is written by the operator", "is the infrastructure of Machine"
	table := []slip{
		{resource: pools, name: "spec edited", do: patched(`{"spec":{"providerIDList":["kwok:///other"]}}`), rejection: byOperator},
		{resource: shardGroups, name: "spec edited", do: patched(`{"spec":{"size":0}}`), rejection: byOperator},

		{resource: machinePools, name: "deleted", do: slipped.deleted, deletes: true},
		{resource: pools, name: "deleted", do: slipped.deleted, deletes: true},
		{resource: shardGroups, name: "deleted", do: slipped.deleted, rejection: "belongs to the operator"},
		{resource: nstanceMachines, name: "deleted", do: slipped.deleted, rejection: ofMachine},
		{resource: nstanceMachines, single: true, name: "deleted", do: slipped.deleted, rejection: ofMachine},

		{resource: machinePools, name: "vanished", do: slipped.vanish, after: slipped.another, onlyWithout: true},
		{resource: shardGroups, name: "vanished", do: slipped.vanish, after: slipped.another, onlyWithout: true},
		{resource: nstanceMachines, name: "vanished", do: slipped.vanish, after: slipped.another, onlyWithout: true},
		{resource: machines, name: "vanished", do: slipped.vanish, after: slipped.another, onlyWithout: true},
		{resource: pools, name: "vanished", do: slipped.vanish, after: slipped.withoutInstances, onlyWithout: true, deletes: true},
		{resource: machines, single: true, name: "vanished", do: slipped.vanish, after: slipped.withoutMachine, onlyWithout: true, deletes: true},

		{resource: pools, name: "created twice", do: slipped.copied, after: slipped.withoutTwin, onlyWithout: true},
		{resource: shardGroups, name: "created twice", do: slipped.copied, rejection: "metadata.name must be"},
		{resource: nstanceMachines, name: "created twice", do: slipped.copied, rejection: "cannot have the label cluster.x-k8s.io/pool-name"},
		{resource: nstanceMachines, single: true, name: "created twice", do: slipped.copied, after: slipped.withoutTwin},
	}
	add := func(resource string, single bool, afterLabels, afterOwners func(slipped, context.Context) error) {
		table = append(table,
			slip{resource: resource, single: single, name: "metadata edited", do: patched(edited)},
			slip{resource: resource, single: single, name: "labels stripped", do: patched(withoutLabels), after: afterLabels},
			slip{resource: resource, single: single, name: "owner removed", do: patched(withoutOwners), after: afterOwners},
			slip{resource: resource, single: single, name: "finalizer removed", do: patched(withoutFinalizers), after: sameFinalizers},
		)
	}
	for _, resource := range []string{machinePools, pools, shardGroups, machines} {
		add(resource, false, sameLabels, sameOwners)
	}
	// Either the label or the owner is enough: neither is written again.
	add(nstanceMachines, false, nil, nil)
	add(nstanceMachines, true, nil, sameOwners)
	add(machines, true, nil, sameOwners)
	return table
}

// No slip of a hand loses an instance, whether the operator runs or is started afterwards: it is
// rejected, repaired, or has no effect. Only the deletion of a MachinePool, of its pool, or of a
// Machine of its own deletes instances.
func TestSlips(t *testing.T) {
	for _, running := range tier.Pick([]bool{false}, []bool{true, false}) {
		t.Run(fmt.Sprintf("operator running %t", running), func(t *testing.T) {
			var cells []*cell
			requests := fmt.Sprintf("slip-%t-requests", running)
			names := []string{requests}
			t.Cleanup(func() { deletePools(t, names...) })
			runPool(t, requests, 0, shardIDs[0])
			for i, s := range slips() {
				if running && s.onlyWithout {
					continue
				}
				name := fmt.Sprintf("slip-%t-%d", running, i)
				names = append(names, name)
				cells = append(cells, newCell(t, s, name, requests))
			}
			for _, c := range cells {
				c.begin(t)
			}
			if !running {
				testcluster.Stop(t, env.OperatorProcess())
			}
			for _, c := range cells {
				c.try(t, c.object)
			}
			if !running {
				testcluster.Start(t, env.OperatorProcess())
			}
			singles := 0
			t.Run("cells", func(t *testing.T) {
				for _, c := range cells {
					if c.single {
						singles++
					}
					t.Run(c.String(), func(t *testing.T) {
						t.Parallel()
						c.expect(t)
					})
				}
			})
			created := slices.DeleteFunc(env.Creations(t, shardIDs[0]), func(created installation.Creation) bool { return created.Group != requests })
			assert.Len(t, created, singles, "instances of Machines of their own")
		})
	}
}

// cell is a slip with a pool of its own, of one instance.
type cell struct {
	slip
	pool      string
	object    slipped
	instances map[string]types.UID
	// instance is the id of the instance of a Machine of its own.
	instance string
	losses   *testcluster.LossChecker
}

// newCell creates the pool, and a Machine of its own of the group requests if the slip needs one.
func newCell(t *testing.T, s slip, name, requests string) *cell {
	t.Helper()
	pool := testcluster.NewNstanceMachinePool(name, shardIDs[0])
	if c := (&cell{slip: s}); c.ofMember() {
		pool.Spec.MachineMode = v1beta1.MachineModeAlways
	}
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, 1), pool))
	if s.single {
		env.CreateMachine(t, singleOf(name), requests, "")
		t.Cleanup(func() { deleteMachine(t, singleOf(name)) })
	}
	return &cell{slip: s, pool: name}
}

// singleOf is the name of the Machine of its own in the cell with a pool.
func singleOf(pool string) string { return pool + "-single" }

func deleteMachine(t *testing.T, name string) {
	t.Helper()
	err := env.Machines().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(t, err)
	}
	testcluster.Eventually(t, 2*time.Minute, name+" is deleted", func(ctx context.Context) error {
		return env.MachineDeleted(ctx, name, "")
	})
}

func (c *cell) String() string {
	of := ""
	if c.single {
		of = " of its own"
	}
	return c.resource + of + ", " + c.name
}

// ofMember reports whether the object belongs to the machine of an instance of the pool.
func (c *cell) ofMember() bool {
	return !c.single && (c.resource == machines || c.resource == nstanceMachines)
}

// begin waits until the pool runs, and reads the object.
func (c *cell) begin(t *testing.T) {
	t.Helper()
	env.UntilRunning(t, c.pool, 1)
	c.instances = instancesOf(t, c.pool)
	require.Len(t, c.instances, 1)
	name := c.pool
	switch {
	case c.single:
		name = singleOf(c.pool)
		c.instance = untilMachineRuns(t, name)
	case c.ofMember():
		untilMachines(t, c.pool, 1)
		list, err := env.Machines().List(t.Context(), metav1.ListOptions{LabelSelector: clusterv1.MachinePoolNameLabel + "=" + c.pool})
		require.NoError(t, err)
		name = list.Items[0].Name
	case c.resource == shardGroups:
		name = v1beta1.ShardGroupName(c.pool, shardIDs[0])
	}
	client := env.Dynamic.Resource(resourceVersion(c.resource).WithResource(c.resource)).Namespace(installation.Namespace)
	before, err := client.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	c.object = slipped{pool: c.pool, client: client, before: before}
	c.losses = env.NewLossChecker(t, c.pool)
	c.losses.IgnoreOtherGroups = true
}

// try does the slip, and compares its error.
func (s slip) try(t *testing.T, object slipped) {
	t.Helper()
	err := s.do(object, t.Context())
	if s.rejection == "" {
		require.NoError(t, err, s.name)
	} else {
		require.ErrorContains(t, err, s.rejection, s.name)
	}
}

// expect fails the test if the cell does not hold.
func (c *cell) expect(t *testing.T) {
	t.Helper()
	if c.after != nil {
		testcluster.Eventually(t, 2*time.Minute, c.String()+": completed", func(ctx context.Context) error {
			return c.after(c.object, ctx)
		})
	}
	switch {
	case c.deletes && c.after != nil:
		return
	case c.deletes:
		// The object is created again.
		untilNothingIsLeft(t, c.pool)
		runPool(t, c.pool, 1, shardIDs[0])
		return
	}
	if c.single {
		assert.Equal(t, c.instance, untilMachineRuns(t, singleOf(c.pool)), "the instance")
	}
	env.UntilRunning(t, c.pool, 1)
	assert.Equal(t, c.instances, instancesOf(t, c.pool))
	env.Scale(t, c.pool, 2)
	env.UntilRunning(t, c.pool, 2)
	now := instancesOf(t, c.pool)
	for id, node := range c.instances {
		assert.Equal(t, node, now[id], "the Node of %s", id)
	}
	c.losses.ExpectNone(t)
}

// untilMachineRuns waits until a Machine of its own has its Node, and returns the id of its
// instance.
func untilMachineRuns(t *testing.T, name string) (instance string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, name+" runs", func(ctx context.Context) error {
		machine, err := env.Machines().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if machine.Status.Phase != string(clusterv1.MachinePhaseRunning) {
			return fmt.Errorf("the Machine is %s", machine.Status.Phase)
		}
		nstanceMachine, err := env.NstanceMachines().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		instance = nstanceMachine.Status.InstanceID
		return testcluster.HasCondition(nstanceMachine.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady)
	})
	return instance
}
