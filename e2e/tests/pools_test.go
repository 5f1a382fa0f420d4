// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

const clusterName = nstance.ClusterID + "--" + nstance.Tenant

// newPool is a pool with a group of its own name.
func newPool(name string, shards ...string) *v1beta1.NstanceMachinePool {
	pool := &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: nstance.Namespace},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: v1beta1.Identifier(name), Template: "worker"},
	}
	for _, shard := range shards {
		pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(shard))
	}
	return pool
}

func newMachinePool(name string, replicas int32) *clusterv1.MachinePool {
	return &clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: nstance.Namespace},
		Spec: clusterv1.MachinePoolSpec{
			ClusterName: clusterName,
			Replicas:    &replicas,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: clusterName,
				Bootstrap:   clusterv1.Bootstrap{DataSecretName: ptr.To("")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{
					APIGroup: v1beta1.GroupName, Kind: "NstanceMachinePool", Name: name,
				},
			}},
		},
	}
}

// createPool makes a MachinePool and its pool over all shards, and removes both
// when the test ends.
func createPool(t testing.TB, name string, replicas int32) {
	t.Helper()
	if err := tryCreatePool(t.Context(), name, replicas); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removePools(t, name) })
}

func tryCreatePool(ctx context.Context, name string, replicas int32) error {
	return tryCreatePoolOn(ctx, name, replicas, shardIDs...)
}

func tryCreatePoolOn(ctx context.Context, name string, replicas int32, shards ...string) error {
	_, err := env.capi.MachinePools(nstance.Namespace).Create(ctx, newMachinePool(name, replicas), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).
		Create(ctx, newPool(name, shards...), metav1.CreateOptions{})
	return err
}

// removePools scales pools to nothing before it deletes them, so that the next
// test finds none of their Nodes.
func removePools(t testing.TB, names ...string) {
	ctx := context.WithoutCancel(t.Context())
	for _, name := range names {
		scale(t, name, 0)
	}
	for _, name := range names {
		eventually(t, time.Minute, name+" has no instances", func(ctx context.Context) error {
			return sizesAre(ctx, name, 0, 0, 0)
		})
		err := env.capi.MachinePools(nstance.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	for _, name := range names {
		eventually(t, time.Minute, name+" is gone", func(ctx context.Context) error { return gone(ctx, name) })
	}
}

// gone succeeds when nothing of a pool is left.
func gone(ctx context.Context, name string) error {
	groups, err := shardGroups(ctx, name)
	if err != nil {
		return err
	}
	if len(groups) > 0 {
		return fmt.Errorf("%d shard groups are left", len(groups))
	}
	_, err = env.capi.MachinePools(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return cmp.Or(err, errors.New("the MachinePool is left"))
}

// scale does what kubectl scale does.
func scale(t testing.TB, name string, replicas int32) {
	t.Helper()
	patchMachinePool(t, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas), "scale")
}

func patchMachinePool(t testing.TB, name, patch string, subresources ...string) {
	t.Helper()
	_, err := env.dynamic.Resource(clusterv1.GroupVersion.WithResource("machinepools")).Namespace(nstance.Namespace).
		Patch(context.WithoutCancel(t.Context()), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		t.Fatal(err)
	}
}

func getPool(ctx context.Context, name string) (*v1beta1.NstanceMachinePool, error) {
	return env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
}

// shardGroups are the shard groups of a pool's group, as kubectl lists them.
func shardGroups(ctx context.Context, group string) ([]v1beta1.NstanceShardGroup, error) {
	list, err := env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace).
		List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelGroup + "=" + group})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// sizesAre succeeds when the shard groups of a pool have these sizes, and run
// that many instances.
func sizesAre(ctx context.Context, group string, sizes ...int32) error {
	groups, err := shardGroups(ctx, group)
	if err != nil {
		return err
	}
	var want, actual []int32
	for _, g := range groups {
		want = append(want, g.Spec.Size)
		actual = append(actual, ptr.Deref(g.Status.Replicas, -1))
	}
	if !slices.Equal(want, sizes) || !slices.Equal(actual, sizes) {
		return fmt.Errorf("sizes %v, running %v, want %v", want, actual, sizes)
	}
	return nil
}

// running succeeds when everybody agrees on a pool's size: our pool, Cluster
// API's MachinePool, and the Nodes.
func running(ctx context.Context, name string, replicas int32) error {
	pool, err := getPool(ctx, name)
	if err != nil {
		return err
	}
	if !meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady) || !ptr.Deref(pool.Status.Ready, false) {
		return fmt.Errorf("pool is not ready: %+v", pool.Status.Conditions)
	}
	if len(pool.Spec.ProviderIDList) != int(replicas) || ptr.Deref(pool.Status.Replicas, -1) != replicas {
		return fmt.Errorf("pool lists %d instances and counts %d, want %d",
			len(pool.Spec.ProviderIDList), ptr.Deref(pool.Status.Replicas, -1), replicas)
	}
	machinePool, err := env.capi.MachinePools(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if machinePool.Status.Phase != string(clusterv1.MachinePoolPhaseRunning) || ptr.Deref(machinePool.Status.ReadyReplicas, -1) != replicas {
		return fmt.Errorf("MachinePool is %s with %d ready, want Running with %d",
			machinePool.Status.Phase, ptr.Deref(machinePool.Status.ReadyReplicas, -1), replicas)
	}
	ready, err := readyNodes(ctx, name)
	if err != nil {
		return err
	}
	slices.Sort(ready)
	if !slices.Equal(ready, pool.Spec.ProviderIDList) {
		return fmt.Errorf("ready Nodes %v, pool lists %v", ready, pool.Spec.ProviderIDList)
	}
	return nil
}

// readyNodes are the provider ids of the ready Nodes of a group.
func readyNodes(ctx context.Context, group string) ([]string, error) {
	nodes, err := env.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelGroup + "=" + group})
	if err != nil {
		return nil, err
	}
	ids := []string{}
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				ids = append(ids, node.Spec.ProviderID)
			}
		}
	}
	return ids, nil
}

// eventually waits until check succeeds, and fails the test with check's last
// error when it does not within the given time.
func eventually(t testing.TB, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	last := errors.New("never checked")
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), 100*time.Millisecond, within, true,
		func(ctx context.Context) (bool, error) {
			err := check(ctx)
			// What was in the way before the time was over tells more.
			if err == nil || ctx.Err() == nil {
				last = err
			}
			return err == nil, nil
		})
	if err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, last)
	}
}

// operatorWrites are the operator's writes since from, other than to its lease.
func operatorWrites(t testing.TB, from controlplane.Position, match func(controlplane.Write) bool) []controlplane.Write {
	t.Helper()
	writes, err := env.cp.AuditLog().Writes(from, func(w controlplane.Write) bool {
		return w.User == nstance.OperatorUser && w.Resource != "leases" && (match == nil || match(w))
	})
	if err != nil {
		t.Fatal(err)
	}
	return writes
}

func auditEnd(t testing.TB) controlplane.Position {
	t.Helper()
	end, err := env.cp.AuditLog().End()
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// describe lists writes for a failure message.
func describe(writes []controlplane.Write) string {
	var lines strings.Builder
	for _, w := range writes {
		fmt.Fprintf(&lines, "\n  %s %s %s/%s %s: %d", w.Time.Format(time.TimeOnly), w.Verb, w.Resource, w.Subresource, w.Name, w.Code)
	}
	return lines.String()
}
