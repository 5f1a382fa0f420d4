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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// untilRunning waits until a pool runs with so many instances, each of which has
// a Machine, and returns the instances.
func untilRunning(t testing.TB, pool string, replicas int) instances {
	t.Helper()
	var found instances
	eventuallyEvery(t, 250*time.Millisecond, patience, fmt.Sprintf("%s runs with %d Machines", pool, replicas),
		func(ctx context.Context) (err error) {
			found, err = running(ctx, pool, replicas)
			return err
		})
	return found
}

// running succeeds when everybody agrees that a pool has so many instances, and
// that each is a Node that is ready and a Machine that is Running: the shards, our
// pool, Cluster API and the Nodes. It returns the instances.
func running(ctx context.Context, name string, replicas int) (instances, error) {
	found, err := instancesOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(found) != replicas {
		return nil, fmt.Errorf("the shards have %d instances, want %d", len(found), replicas)
	}
	pool, err := getPool(ctx, name)
	if err != nil {
		return nil, err
	}
	if pool.Status.InfrastructureMachineKind != "NstanceMachine" ||
		!meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionMachinesEnabled) {
		return nil, fmt.Errorf("its instances have no Machines: kind %q, %+v", pool.Status.InfrastructureMachineKind, pool.Status.Conditions)
	}
	if err := steady(ctx, name, found); err != nil {
		return nil, err
	}
	machines, err := machinesOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if names := namesOf(machines); !slices.Equal(names, found.ids()) {
		return nil, fmt.Errorf("Machines %v, instances %v", names, found.ids())
	}
	members, err := membersOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(members) != replicas {
		return nil, fmt.Errorf("%d NstanceMachines", len(members))
	}
	for _, machine := range machines {
		if machine.Status.Phase != string(clusterv1.MachinePhaseRunning) || machine.Status.NodeRef.Name != machine.Name {
			return nil, fmt.Errorf("Machine %s is %s with Node %q", machine.Name, machine.Status.Phase, machine.Status.NodeRef.Name)
		}
	}
	return found, nil
}

// steady succeeds when a pool is ready and lists, as do the Nodes, exactly these
// instances. Whether they have Machines is another matter.
func steady(ctx context.Context, name string, want instances) error {
	pool, err := getPool(ctx, name)
	if err != nil {
		return err
	}
	if !meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady) || ptr.Deref(pool.Status.Replicas, -1) != int32(len(want)) {
		return fmt.Errorf("the pool has %d replicas: %+v", ptr.Deref(pool.Status.Replicas, -1), pool.Status.Conditions)
	}
	nodes, err := nodesOf(ctx, name)
	if err != nil {
		return err
	}
	var names, providerIDs []string
	for _, node := range nodes {
		if nodeIs(node, corev1.NodeReady) {
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

// untilCounted waits until Cluster API counts what there is. It does not look at a
// MachinePool when one of its Machines changes, but when a Node does: at the latest
// with its next heartbeat.
func untilCounted(t testing.TB, pool string, replicas int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("Cluster API counts %d replicas of %s", replicas, pool), func(ctx context.Context) error {
		return counted(ctx, pool, replicas)
	})
}

// counted succeeds when Cluster API counts so many replicas of a MachinePool, and
// as many in each state that one can be in.
func counted(ctx context.Context, name string, replicas int32) error {
	machinePool, err := env.capi.MachinePools(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
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

func nodeIs(node corev1.Node, condition corev1.NodeConditionType) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}

// namesOf are the names of Machines, sorted.
func namesOf(machines []clusterv1.Machine) []string {
	var names []string
	for _, machine := range machines {
		names = append(names, machine.Name)
	}
	slices.Sort(names)
	return names
}

// expectLikeCAPI fails the test unless the Machines of a pool, and what stands for
// them with us, refer to each other as Cluster API's contract asks.
func expectLikeCAPI(t *testing.T, pool string, found instances) {
	t.Helper()
	machines, err := machinesOf(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, machine := range machines {
		member, err := nstanceMachines().Get(t.Context(), machine.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node, err := env.kube.CoreV1().Nodes().Get(t.Context(), machine.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if machine.Spec.ProviderID != node.Spec.ProviderID || member.Spec.ProviderID != node.Spec.ProviderID {
			t.Errorf("provider ids: Node %q, Machine %q, NstanceMachine %q", node.Spec.ProviderID, machine.Spec.ProviderID, member.Spec.ProviderID)
		}
		if ref := machine.Spec.InfrastructureRef; ref.Kind != "NstanceMachine" || ref.Name != machine.Name {
			t.Errorf("Machine %s refers to %s %s", machine.Name, ref.Kind, ref.Name)
		}
		if owner := metav1.GetControllerOf(&machine); owner == nil || owner.Kind != "MachinePool" || owner.Name != pool {
			t.Errorf("Machine %s is controlled by %v, want MachinePool %s", machine.Name, owner, pool)
		}
		if owner := metav1.GetControllerOf(member); owner == nil || owner.UID != machine.UID {
			t.Errorf("NstanceMachine %s is controlled by %v, want its Machine", machine.Name, owner)
		}
		if !slices.ContainsFunc(member.OwnerReferences, func(o metav1.OwnerReference) bool {
			return o.Kind == v1beta1.PoolKind && o.Name == pool && !ptr.Deref(o.Controller, false)
		}) {
			t.Errorf("NstanceMachine %s belongs to %v, want the pool among them", machine.Name, member.OwnerReferences)
		}
		if member.Status.InstanceID != machine.Name || member.Status.Shard != found[machine.Name] {
			t.Errorf("NstanceMachine %s is instance %s on shard %s, want shard %s", machine.Name, member.Status.InstanceID, member.Status.Shard, found[machine.Name])
		}
	}
}
