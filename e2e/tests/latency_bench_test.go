// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// latencyRounds are how many scalings each median is of.
const latencyRounds = 50

// floorNamespace is one that the operator does not watch.
const floorNamespace = "floor"

// BenchmarkLatency measures from the request that scales a MachinePool to the
// moment when the shard's server receives UpsertGroup. The floor, measured in
// turn with it, is the least that such a trip can cost: a bare watch of the
// MachinePool, one write, a watch of what was written, and one call.
func BenchmarkLatency(b *testing.B) {
	server := servertest.Start(b, servertest.Options{Shard: "bench", Authority: env.n.Authority()})
	configureShard(b, "bench", server.Addr)
	const name = "latency"
	if err := createLatencyPool(b.Context(), name); err != nil {
		b.Fatal(err)
	}
	startFloor(b, server)

	operator, floor := make([]time.Duration, 0, latencyRounds), make([]time.Duration, 0, latencyRounds)
	for b.Loop() {
		for i := range int32(latencyRounds) {
			size := 1 + i%2
			operator = append(operator, scaleAndWait(b, server, nstance.Namespace, name, size))
			eventually(b, time.Minute, "the operator has reported", func(ctx context.Context) error {
				return reported(ctx, name, size)
			})
			floor = append(floor, scaleAndWait(b, server, floorNamespace, floorNamespace, size))
		}
	}
	b.ReportMetric(milliseconds(median(operator)), "operator-ms")
	b.ReportMetric(milliseconds(median(floor)), "floor-ms")
	b.ReportMetric(float64(median(operator))/float64(median(floor)), "operator/floor")
}

// configureShard tells the operator of one more shard.
func configureShard(b *testing.B, id, address string) {
	b.Helper()
	configMaps := env.kube.CoreV1().ConfigMaps(nstance.Namespace)
	change := func(value string) {
		patch := fmt.Appendf(nil, `{"data":{%q:%s}}`, id, value)
		_, err := configMaps.Patch(context.WithoutCancel(b.Context()), "nstance-shards", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			b.Fatal(err)
		}
	}
	change(fmt.Sprintf("%q", address))
	b.Cleanup(func() { change("null") })
}

// createLatencyPool makes a pool on the benchmark's own shard. Its instances are
// nobody's: that server's Nodes are in no cluster.
func createLatencyPool(ctx context.Context, name string) error {
	_, err := env.capi.MachinePools(nstance.Namespace).Create(ctx, newMachinePool(name, 0), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).
		Create(ctx, newPool(name, "bench"), metav1.CreateOptions{})
	return err
}

// scaleAndWait scales a MachinePool and returns how long it takes until the
// server receives the new size for the group of that name.
func scaleAndWait(b *testing.B, server *servertest.Server, namespace, name string, size int32) time.Duration {
	b.Helper()
	begin := time.Now()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, size)
	_, err := env.dynamic.Resource(clusterv1.GroupVersion.WithResource("machinepools")).Namespace(namespace).
		Patch(b.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		b.Fatal(err)
	}
	var took time.Duration
	eventually(b, time.Minute, fmt.Sprintf("%s/%s gets size %d", namespace, name, size), func(context.Context) error {
		for _, call := range server.Calls("UpsertGroup") {
			request, ok := call.Request.(*nstancev1.UpsertGroupRequest)
			if ok && call.At.After(begin) && request.GetKey() == name && request.GetConfig().GetSize() == size {
				took = call.At.Sub(begin)
				return nil
			}
		}
		return fmt.Errorf("not received")
	})
	return took
}

// reported succeeds when the operator's writes for a change are over.
func reported(ctx context.Context, name string, size int32) error {
	group, err := getShardGroup(ctx, name, "bench")
	if err != nil {
		return err
	}
	if group.Spec.Size != size || group.Status.ObservedGeneration != group.Generation || *group.Status.Replicas != size {
		return fmt.Errorf("shard group: %+v", group.Status)
	}
	pool, err := getPool(ctx, name)
	if err != nil {
		return err
	}
	if len(pool.Spec.ProviderIDList) != int(size) || pool.Status.ObservedGeneration != pool.Generation || *pool.Status.Replicas != size {
		return fmt.Errorf("pool: %+v", pool.Status)
	}
	return nil
}

// startFloor does what the operator does, and nothing that it does besides.
func startFloor(b *testing.B, server *servertest.Server) {
	b.Helper()
	ctx := b.Context()
	if _, err := env.kube.CoreV1().Namespaces().Apply(ctx, corev1ac.Namespace(floorNamespace), metav1.ApplyOptions{FieldManager: "floor"}); err != nil {
		b.Fatal(err)
	}
	machinePool := newMachinePool(floorNamespace, 0)
	machinePool.Namespace = floorNamespace
	if _, err := env.capi.MachinePools(floorNamespace).Create(ctx, machinePool, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	machinePools, err := env.capi.MachinePools(floorNamespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(machinePools.Stop)
	shardGroups := env.nstance.InfrastructureV1beta1().NstanceShardGroups(floorNamespace)
	groups, err := shardGroups.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(groups.Stop)
	client := server.Operator(nstance.Tenant)

	onChange(machinePools, func(changed *clusterv1.MachinePool) int32 {
		return *changed.Spec.Replicas
	}, func(size int32) {
		applied := applyv1beta1.NstanceShardGroup(v1beta1.ShardGroupName(floorNamespace, "bench"), floorNamespace).
			WithSpec(applyv1beta1.NstanceShardGroupSpec().WithGroup(floorNamespace).WithShard("bench").WithSize(size).WithTemplate("worker"))
		if _, err := shardGroups.Apply(ctx, applied, metav1.ApplyOptions{FieldManager: "floor", Force: true}); err != nil && ctx.Err() == nil {
			b.Error(err)
		}
	})
	onChange(groups, func(changed *v1beta1.NstanceShardGroup) int32 {
		return changed.Spec.Size
	}, func(size int32) {
		_, err := client.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{
			Key: floorNamespace, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
		})
		if err != nil && ctx.Err() == nil {
			b.Error(err)
		}
	})
}

// onChange calls act with each new size that a watch shows.
func onChange[T any](events watch.Interface, size func(T) int32, act func(int32)) {
	go func() {
		last := int32(-1)
		for event := range events.ResultChan() {
			object, ok := event.Object.(T)
			if !ok {
				continue
			}
			if now := size(object); now != last {
				last = now
				act(now)
			}
		}
	}()
}

func median(values []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
