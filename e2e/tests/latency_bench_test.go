// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// latencyRounds are how many scalings each median is of.
const latencyRounds = 50

// BenchmarkLatency measures from the request that scales a MachinePool to the
// moment when the shard's server receives UpsertGroup. The floor, measured in
// turn with it, is the least that such a trip can cost: a bare watch of a
// MachinePool, one write, a watch of what was written, and one call, with
// objects of the same making, while the operator is stopped. It leaves its pools
// behind.
func BenchmarkLatency(b *testing.B) {
	server := servertest.Start(b, servertest.Options{Shard: "bench", Authority: env.n.Authority()})
	for _, name := range []string{"latency", "floor"} {
		configureShard(b, name, server.Addr)
		createOn(b, name, name)
	}
	// The operator keeps its hands off a pool whose shard it does not know.
	removeShard(b, "floor")
	eventually(b, time.Minute, "the operator leaves the floor alone", func(ctx context.Context) error {
		group, err := getShardGroup(ctx, "floor", "floor")
		if err != nil {
			return err
		}
		reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable)
		if reachable == nil || reachable.Reason != v1beta1.ReasonUnknownShard {
			return fmt.Errorf("ShardReachable is %+v", reachable)
		}
		return nil
	})
	startFloor(b, server, "floor")

	operator, floor := make([]time.Duration, 0, latencyRounds), make([]time.Duration, 0, latencyRounds)
	for b.Loop() {
		for i := range int32(latencyRounds) {
			size := 2 - i%2
			untilQuiet(b)
			operator = append(operator, scaleAndWait(b, server, "latency", size))
			eventually(b, time.Minute, "the operator has reported", func(ctx context.Context) error {
				return reported(ctx, "latency", size)
			})
			untilQuiet(b)
			floor = append(floor, withoutOperator(b, func() time.Duration { return scaleAndWait(b, server, "floor", size) }))
			eventually(b, time.Minute, "the operator has seen the floor's write", func(ctx context.Context) error {
				group, err := getShardGroup(ctx, "floor", "floor")
				if err == nil && group.Status.ObservedGeneration != group.Generation {
					err = fmt.Errorf("status is of generation %d", group.Status.ObservedGeneration)
				}
				return err
			})
		}
	}
	b.ReportMetric(milliseconds(median(operator)), "operator-ms")
	b.ReportMetric(milliseconds(median(floor)), "floor-ms")
	b.ReportMetric(float64(median(operator))/float64(median(floor)), "operator/floor")
}

// withoutOperator runs f while the operator is stopped, so that nothing the
// operator does costs f any time.
func withoutOperator[T any](b *testing.B, f func() T) T {
	b.Helper()
	pid, ok := env.cp.Component(env.operator.Component).PID()
	if !ok {
		b.Fatal("the operator does not run")
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			b.Error(err)
		}
	}()
	return f()
}

// untilQuiet waits until nobody has written anything for five looks, so that no
// measurement contains what the one before has set off.
func untilQuiet(b *testing.B) {
	b.Helper()
	from, quiet := auditEnd(b), 0
	eventually(b, time.Minute, "nobody writes", func(context.Context) error {
		writes, err := env.cp.AuditLog().Writes(from, func(w controlplane.Write) bool { return w.Resource != "leases" })
		if err != nil {
			return err
		}
		if quiet++; len(writes) > 0 {
			from, quiet = auditEnd(b), 0
		}
		if quiet < 5 {
			return fmt.Errorf("%d looks without a write", quiet)
		}
		return nil
	})
}

// configureShard tells the operator of one more shard.
func configureShard(b testing.TB, id, address string) {
	b.Helper()
	patchShards(b, fmt.Sprintf(`{"data":{%q:%q}}`, id, address))
	b.Cleanup(func() { removeShard(b, id) })
}

func removeShard(b testing.TB, id string) {
	b.Helper()
	patchShards(b, fmt.Sprintf(`{"data":{%q:null}}`, id))
}

func patchShards(b testing.TB, patch string) {
	b.Helper()
	_, err := env.kube.CoreV1().ConfigMaps(nstance.Namespace).Patch(context.WithoutCancel(b.Context()),
		"nstance-shards", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		b.Fatal(err)
	}
}

// createOn makes a pool of one instance on one shard. The instance is nobody's:
// the Nodes of the benchmark's server are in no cluster.
func createOn(b *testing.B, name, shard string) {
	b.Helper()
	_, err := env.capi.MachinePools(nstance.Namespace).Create(b.Context(), newMachinePool(name, 1), metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	// The webhook refuses it until the operator has seen the shard.
	eventually(b, time.Minute, "the pool is made", func(ctx context.Context) error {
		_, err := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).
			Create(ctx, newPool(name, shard), metav1.CreateOptions{})
		return err
	})
	eventually(b, time.Minute, name+" is reported", func(ctx context.Context) error { return reported(ctx, name, 1) })
}

// scaleAndWait scales a MachinePool and returns how long it takes until the
// server receives the new size for the group of that name.
func scaleAndWait(b *testing.B, server *servertest.Server, name string, size int32) time.Duration {
	b.Helper()
	begin := time.Now()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, size)
	_, err := env.dynamic.Resource(clusterv1.GroupVersion.WithResource("machinepools")).Namespace(nstance.Namespace).
		Patch(b.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		b.Fatal(err)
	}
	var took time.Duration
	eventually(b, time.Minute, fmt.Sprintf("%s gets size %d", name, size), func(context.Context) error {
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
	group, err := getShardGroup(ctx, name, name)
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
func startFloor(b *testing.B, server *servertest.Server, name string) {
	b.Helper()
	ctx := b.Context()
	machinePools, err := env.capi.MachinePools(nstance.Namespace).Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(machinePools.Stop)
	shardGroups := env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace)
	groups, err := shardGroups.Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: v1beta1.ShardGroupName(name, name)}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(groups.Stop)
	client := server.Operator(nstance.Tenant)

	onChange(machinePools, func(changed *clusterv1.MachinePool) int32 { return *changed.Spec.Replicas }, func(size int32) {
		id := v1beta1.Identifier(name)
		applied := applyv1beta1.NstanceShardGroup(v1beta1.ShardGroupName(name, name), nstance.Namespace).
			WithSpec(applyv1beta1.NstanceShardGroupSpec().WithGroup(id).WithShard(id).WithSize(size).WithTemplate("worker"))
		if _, err := shardGroups.Apply(ctx, applied, metav1.ApplyOptions{FieldManager: "floor", Force: true}); err != nil && ctx.Err() == nil {
			b.Error(err)
		}
	})
	onChange(groups, func(changed *v1beta1.NstanceShardGroup) int32 { return changed.Spec.Size }, func(size int32) {
		_, err := client.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{
			Key: name, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
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
