// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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

// createPool creates a pool that the autoscaler scales, on all shards but the old shard, with a
// group of the same name, and deletes it at the end of the test.
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
	_, err := env.PatchNstanceMachinePool(t.Context(), name, patch)
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

// untilRunning waits until a pool runs with so many instances, each of which has
// a Machine, and returns the instances.
func untilRunning(t testing.TB, pool string, replicas int) instances {
	t.Helper()
	var found instances
	testcluster.EventuallyEvery(t, 250*time.Millisecond, timeout, fmt.Sprintf("%s runs with %d Machines", pool, replicas),
		func(ctx context.Context) (err error) {
			found, err = running(ctx, pool, replicas)
			return err
		})
	return found
}

// running succeeds when the shards, the pool, Cluster API and the Nodes agree that a
// pool has so many instances, and each has a ready Node and a Machine that is Running.
// It returns the instances.
func running(ctx context.Context, name string, replicas int) (instances, error) {
	found, err := instancesOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(found) != replicas {
		return nil, fmt.Errorf("the shards have %d instances, want %d", len(found), replicas)
	}
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return nil, err
	}
	if pool.Status.InfrastructureMachineKind != "NstanceMachine" ||
		!meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionMachinesEnabled) {
		return nil, fmt.Errorf("its instances have no Machines: kind %q, %+v", pool.Status.InfrastructureMachineKind, pool.Status.Conditions)
	}
	if err := stable(ctx, name, found); err != nil {
		return nil, err
	}
	machines, err := machinesOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if names := namesOf(machines); !slices.Equal(names, found.ids()) {
		return nil, fmt.Errorf("Machines %v, instances %v", names, found.ids())
	}
	nstanceMachines, err := nstanceMachinesOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(nstanceMachines) != replicas {
		return nil, fmt.Errorf("%d NstanceMachines", len(nstanceMachines))
	}
	for _, machine := range machines {
		if machine.Status.Phase != string(clusterv1.MachinePhaseRunning) || machine.Status.NodeRef.Name != machine.Name {
			return nil, fmt.Errorf("Machine %s is %s with Node %q", machine.Name, machine.Status.Phase, machine.Status.NodeRef.Name)
		}
	}
	return found, nil
}

// stable succeeds when a pool is ready, and the pool and the Nodes list exactly these instances.
// It does not check Machines.
func stable(ctx context.Context, name string, want instances) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	if err := testcluster.Settled(pool); err != nil {
		return err
	}
	if ptr.Deref(pool.Status.Replicas, -1) != int32(len(want)) {
		return fmt.Errorf("the pool has %d replicas", ptr.Deref(pool.Status.Replicas, -1))
	}
	nodes, err := env.Nodes(ctx, name)
	if err != nil {
		return err
	}
	var names, providerIDs []string
	for _, node := range nodes {
		if testcluster.IsReady(node) {
			names, providerIDs = append(names, node.Name), append(providerIDs, node.Spec.ProviderID)
		}
	}
	slices.Sort(names)
	slices.Sort(providerIDs)
	if len(nodes) != len(want) || !slices.Equal(names, want.ids()) {
		return fmt.Errorf("%d Nodes, of which %v are ready, want %v", len(nodes), names, want.ids())
	}
	listed, err := nodeGroup{name}.instances(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(providerIDs, pool.Spec.ProviderIDList) || !slices.Equal(providerIDs, listed) {
		return fmt.Errorf("Nodes have provider ids %v, the pool lists %v, the MachinePool %v", providerIDs, pool.Spec.ProviderIDList, listed)
	}
	return nil
}

// untilCounted waits until Cluster API counts so many replicas. It reconciles a MachinePool not
// when a Machine changes, but when a Node changes: at the latest with its next heartbeat.
func untilCounted(t testing.TB, pool string, replicas int32) {
	t.Helper()
	testcluster.Eventually(t, timeout, fmt.Sprintf("Cluster API counts %d replicas of %s", replicas, pool), func(ctx context.Context) error {
		return counted(ctx, pool, replicas)
	})
}

// counted succeeds when Cluster API counts so many replicas of a MachinePool, and as
// many in each state.
func counted(ctx context.Context, name string, replicas int32) error {
	machinePool, err := env.MachinePools().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	status := machinePool.Status
	counts := map[string]*int32{
		"desired": machinePool.Spec.Replicas, "actual": status.Replicas, "ready": status.ReadyReplicas,
		"available": status.AvailableReplicas, "up to date": status.UpToDateReplicas, "with Nodes": ptr.To(int32(len(status.NodeRefs))),
	}
	var errs []error
	for what, count := range counts {
		if ptr.Deref(count, -1) != replicas {
			errs = append(errs, fmt.Errorf("%d replicas are %s, want %d", ptr.Deref(count, -1), what, replicas))
		}
	}
	if status.Phase != string(clusterv1.MachinePoolPhaseRunning) {
		errs = append(errs, fmt.Errorf("the MachinePool is %s", status.Phase))
	}
	return errors.Join(errs...)
}

// namesOf returns the names of Machines, sorted.
func namesOf(machines []clusterv1.Machine) []string {
	var names []string
	for _, machine := range machines {
		names = append(names, machine.Name)
	}
	slices.Sort(names)
	return names
}

// expectContract fails the test unless the Machines of a pool and their
// NstanceMachines refer to each other as docs/capi.md describes.
func expectContract(t *testing.T, pool string, found instances) {
	t.Helper()
	machines, err := machinesOf(t.Context(), pool)
	require.NoError(t, err)
	for _, machine := range machines {
		nstanceMachine, err := env.NstanceMachines().Get(t.Context(), machine.Name, metav1.GetOptions{})
		require.NoError(t, err)
		node, err := env.Kube.CoreV1().Nodes().Get(t.Context(), machine.Name, metav1.GetOptions{})
		require.NoError(t, err)
		if machine.Spec.ProviderID != node.Spec.ProviderID || nstanceMachine.Spec.ProviderID != node.Spec.ProviderID {
			t.Errorf("provider ids: Node %q, Machine %q, NstanceMachine %q", node.Spec.ProviderID, machine.Spec.ProviderID, nstanceMachine.Spec.ProviderID)
		}
		if ref := machine.Spec.InfrastructureRef; ref.Kind != "NstanceMachine" || ref.Name != machine.Name {
			t.Errorf("Machine %s refers to %s %s", machine.Name, ref.Kind, ref.Name)
		}
		if owner := metav1.GetControllerOf(&machine); owner == nil || owner.Kind != "MachinePool" || owner.Name != pool {
			t.Errorf("Machine %s is controlled by %v, want MachinePool %s", machine.Name, owner, pool)
		}
		if owner := metav1.GetControllerOf(nstanceMachine); owner == nil || owner.UID != machine.UID {
			t.Errorf("NstanceMachine %s is controlled by %v, want its Machine", machine.Name, owner)
		}
		if !slices.ContainsFunc(nstanceMachine.OwnerReferences, func(o metav1.OwnerReference) bool {
			return o.Kind == v1beta1.PoolKind && o.Name == pool && !ptr.Deref(o.Controller, false)
		}) {
			t.Errorf("NstanceMachine %s has owners %v, want the pool among them", machine.Name, nstanceMachine.OwnerReferences)
		}
		if nstanceMachine.Status.InstanceID != machine.Name || nstanceMachine.Status.Shard != found[machine.Name] {
			t.Errorf("NstanceMachine %s is instance %s on shard %s, want shard %s", machine.Name, nstanceMachine.Status.InstanceID, nstanceMachine.Status.Shard, found[machine.Name])
		}
	}
}

// untilResynced waits until the operator has synced as many shard groups as exist, twice, and two
// resync periods are over: time enough for everything that it does on a resync. Other tests
// trigger syncs, too.
func untilResynced(t testing.TB) {
	t.Helper()
	groups, err := env.NstanceShardGroups().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	resynced := time.Now().Add(2 * resync)
	env.UntilQueued(t, timeout, "shardgroup", 2*len(groups.Items))
	testcluster.Eventually(t, timeout, "two resync periods are over", func(context.Context) error {
		if left := time.Until(resynced); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
}
