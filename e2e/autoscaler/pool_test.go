// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	infrastructureclient "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
)

// poolChange changes what a test needs to be different of a MachinePool and its
// pool.
type poolChange func(*clusterv1.MachinePool, *v1beta1.NstanceMachinePool)

// notScaled takes away what tells the autoscaler of a pool.
func notScaled(machinePool *clusterv1.MachinePool, _ *v1beta1.NstanceMachinePool) {
	machinePool.Annotations = nil
}

func clusterAPI(resource string) dynamic.ResourceInterface {
	return env.dynamic.Resource(clusterv1.GroupVersion.WithResource(resource)).Namespace(nstance.Namespace)
}

func nstancePools() infrastructureclient.NstanceMachinePoolInterface {
	return env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace)
}

func nstanceMachines() infrastructureclient.NstanceMachineInterface {
	return env.nstance.InfrastructureV1beta1().NstanceMachines(nstance.Namespace)
}

// createPool makes a pool on all shards but the old one that the autoscaler is
// told to scale, with a group of the same name, and removes it when the test ends.
func createPool(t testing.TB, name string, replicas int32, changes ...poolChange) nodeGroup {
	t.Helper()
	t.Cleanup(func() { removePool(t, name) })
	return createLastingPool(t, name, replicas, changes...)
}

// createLastingPool makes a pool that nobody removes.
func createLastingPool(t testing.TB, name string, replicas int32, changes ...poolChange) nodeGroup {
	t.Helper()
	machinePool := &clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Annotations: map[string]string{
				clusterv1.AutoscalerMinSizeAnnotation: "0",
				clusterv1.AutoscalerMaxSizeAnnotation: "1000",
			},
		},
		Spec: clusterv1.MachinePoolSpec{
			ClusterName: clusterName,
			Replicas:    &replicas,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: clusterName,
				Bootstrap:   clusterv1.Bootstrap{DataSecretName: ptr.To("")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{
					APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: name,
				},
			}},
		},
	}
	pool := &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: v1beta1.Identifier(name), Template: "worker"},
	}
	for _, shard := range shardIDs {
		pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(shard))
	}
	for _, change := range changes {
		change(machinePool, pool)
	}
	machinePool.Namespace, pool.Namespace = nstance.Namespace, nstance.Namespace
	_, err := env.capi.MachinePools(nstance.Namespace).Create(t.Context(), machinePool, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nstancePools().Create(t.Context(), pool, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return nodeGroup{name}
}

// removePool removes a pool, if a test has not, and waits until nothing of it is
// left.
func removePool(t testing.TB, name string) {
	t.Helper()
	err := env.capi.MachinePools(nstance.Namespace).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	eventually(t, "nothing of "+name+" is left", func(ctx context.Context) error { return gone(ctx, name) })
}

// gone succeeds when nothing of a pool is left anywhere.
func gone(ctx context.Context, name string) error {
	var errs []error
	left := func(what string, count int, err error) {
		if err == nil && count > 0 {
			err = fmt.Errorf("%d %s are left", count, what)
		}
		errs = append(errs, err)
	}
	_, err := env.capi.MachinePools(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
	left("MachinePools", 1, err)
	_, err = nstancePools().Get(ctx, name, metav1.GetOptions{})
	left("NstanceMachinePools", 1, err)
	for i, err := range errs {
		if apierrors.IsNotFound(err) {
			errs[i] = nil
		}
	}
	groups, err := shardGroups(ctx, name)
	left("NstanceShardGroups", len(groups), err)
	machines, err := machinesOf(ctx, name)
	left("Machines", len(machines), err)
	members, err := membersOf(ctx, name)
	left("NstanceMachines", len(members), err)
	nodes, err := nodesOf(ctx, name)
	left("Nodes", len(nodes), err)
	for shard := range env.servers {
		group, err := groupOn(ctx, shard, name)
		if err == nil && group != nil {
			err = fmt.Errorf("shard %s lists the group: %v", shard, group)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func getPool(ctx context.Context, name string) (*v1beta1.NstanceMachinePool, error) {
	return nstancePools().Get(ctx, name, metav1.GetOptions{})
}

func patchPool(t testing.TB, name, patch string) {
	t.Helper()
	if _, err := nstancePools().Patch(t.Context(), name, mergePatch, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// annotatePool sets an annotation of the MachinePool to a JSON value.
func annotatePool(t testing.TB, name, annotation, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, annotation, value)
	if _, err := clusterAPI("machinepools").Patch(t.Context(), name, mergePatch, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// inPool selects what Cluster API knows by the name of its MachinePool.
func inPool(name string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: clusterv1.MachinePoolNameLabel + "=" + capi.LabelValue(name)}
}

// inGroup selects what belongs to a group.
func inGroup(name string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: v1beta1.LabelGroup + "=" + name}
}

func machinesOf(ctx context.Context, pool string) ([]clusterv1.Machine, error) {
	list, err := env.capi.Machines(nstance.Namespace).List(ctx, inPool(pool))
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func membersOf(ctx context.Context, pool string) ([]v1beta1.NstanceMachine, error) {
	list, err := nstanceMachines().List(ctx, inPool(pool))
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func nodesOf(ctx context.Context, group string) ([]corev1.Node, error) {
	list, err := env.kube.CoreV1().Nodes().List(ctx, inGroup(group))
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func shardGroups(ctx context.Context, group string) ([]v1beta1.NstanceShardGroup, error) {
	list, err := env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace).List(ctx, inGroup(group))
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
