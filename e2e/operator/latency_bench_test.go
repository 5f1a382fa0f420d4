// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	admissionregistrationv1ac "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// latencyRounds is the number of scalings behind each median.
const latencyRounds = 50

const (
	// mostLatency is the target: how many times the floor the operator may take.
	mostLatency = 1.5
	// leastLatency is the least plausible ratio. The operator does everything that the floor does,
	// so that its median is below the floor only by the noise of the machine: some percent, on a
	// busy machine up to a quarter.
	leastLatency = 0.5
)

// BenchmarkLatency measures from the request that scales a MachinePool to the moment when the
// shard's server receives UpsertGroup. The floor, measured in turn with it, is the least possible
// time: a bare watch of a MachinePool, one write, a watch of the written object, and one call,
// with the same kinds of objects, while the operator is stopped and the API server does not call
// its webhook. It does not delete its pools.
func BenchmarkLatency(b *testing.B) {
	// Each shard has a server of its own, because the operator does not call servers of another
	// shard.
	servers := map[string]*servertest.Server{}
	for _, name := range []string{"latency", "floor"} {
		servers[name] = servertest.Start(testcluster.WithoutLog(b), servertest.Options{
			Cluster: installation.ClusterID, Shard: name, Authority: env.Installation.Authority(),
		})
		configureShard(b, name, servers[name].Addr)
		createOn(b, name, name)
	}
	// The operator does not write to a pool whose shard it does not know.
	removeShard(b, "floor")
	testcluster.Eventually(b, time.Minute, "the operator does not know the floor's shard", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, "floor", "floor")
		if err != nil {
			return err
		}
		reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable)
		if reachable == nil || reachable.Reason != v1beta1.ReasonUnknownShard {
			return fmt.Errorf("ShardReachable is %+v", reachable)
		}
		return nil
	})
	startFloor(b, servers["floor"], "floor")
	excludeFromWebhook(b, "floor")

	operator, floor := make([]time.Duration, 0, latencyRounds), make([]time.Duration, 0, latencyRounds)
	for b.Loop() {
		for i := range int32(latencyRounds) {
			size := 2 - i%2
			env.UntilNoWrites(b, time.Minute, 5)
			operator = append(operator, scaleAndWait(b, servers["latency"], "latency", size))
			testcluster.Eventually(b, time.Minute, "the operator has reported", func(ctx context.Context) error {
				return reported(ctx, "latency", size)
			})
			env.UntilNoWrites(b, time.Minute, 5)
			floor = append(floor, withoutOperator(b, func() time.Duration { return scaleAndWait(b, servers["floor"], "floor", size) }))
			testcluster.Eventually(b, time.Minute, "the operator has observed the floor's write", func(ctx context.Context) error {
				group, err := env.ShardGroup(ctx, "floor", "floor")
				if err == nil && group.Status.ObservedGeneration != group.Generation {
					err = fmt.Errorf("status is of generation %d", group.Status.ObservedGeneration)
				}
				return err
			})
		}
	}
	b.ReportMetric(milliseconds(median(operator)), "operator-ms")
	b.ReportMetric(milliseconds(median(floor)), "floor-ms")
	ratio := float64(median(operator)) / float64(median(floor))
	b.ReportMetric(ratio, "operator/floor")
	if ratio > mostLatency {
		b.Errorf("the operator takes %.2f times the floor, want at most %v", ratio, mostLatency)
	}
	// Each direction has its own median: a delay of one direction hardly changes the median of
	// both.
	for first, direction := range []string{"up", "down"} {
		operator, floor := median(everySecond(operator, first)), median(everySecond(floor, first))
		if float64(operator) < leastLatency*float64(floor) {
			b.Errorf("to scale %s takes the operator %v and the floor %v: something that is not in the operator's path delays the floor",
				direction, operator, floor)
		}
	}
}

func everySecond(values []time.Duration, first int) []time.Duration {
	var kept []time.Duration
	for i := first; i < len(values); i += 2 {
		kept = append(kept, values[i])
	}
	return kept
}

// excludeFromWebhook makes the API server not call the operator's webhook for the
// MachinePool of that name until the end of the benchmark: while the operator is
// stopped, every call would take as long as its timeout.
func excludeFromWebhook(b *testing.B, machinePool string) {
	b.Helper()
	configuration := admissionregistrationv1ac.ValidatingWebhookConfiguration(webhookConfiguration)
	apply := func() {
		_, err := env.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().
			Apply(context.WithoutCancel(b.Context()), configuration, metav1.ApplyOptions{FieldManager: "floor"})
		require.NoError(b, err)
	}
	// The conditions of the manifest belong to another field manager and stay.
	condition := admissionregistrationv1ac.MatchCondition().
		WithName("not-the-floor").WithExpression(fmt.Sprintf("request.name != %q", machinePool))
	configuration.WithWebhooks(admissionregistrationv1ac.ValidatingWebhook().
		WithName("machinepools.nstance.dev").WithMatchConditions(condition))
	apply()
	b.Cleanup(func() {
		configuration.Webhooks = nil
		apply()
	})
}

// withoutOperator runs f while the operator is stopped, so that the operator does not delay f.
func withoutOperator[T any](b *testing.B, f func() T) T {
	b.Helper()
	pid, ok := env.OperatorProcess().PID()
	require.True(b, ok, "the operator does not run")
	require.NoError(b, syscall.Kill(pid, syscall.SIGSTOP))
	defer func() {
		assert.NoError(b, syscall.Kill(pid, syscall.SIGCONT))
	}()
	return f()
}

// configureShard adds a shard to the operator's configuration until the end of the
// test.
func configureShard(b testing.TB, id, address string) {
	b.Helper()
	require.NoError(b, env.SetShardAddress(b.Context(), id, address))
	b.Cleanup(func() { removeShard(b, id) })
}

func removeShard(b testing.TB, id string) {
	b.Helper()
	require.NoError(b, env.SetShardAddress(context.WithoutCancel(b.Context()), id, ""))
}

// createOn creates a pool of one instance on one shard. The Node of the instance is in
// no cluster.
func createOn(b *testing.B, name, shard string) {
	b.Helper()
	_, err := env.MachinePools().Create(b.Context(), testcluster.NewMachinePool(name, 1), metav1.CreateOptions{})
	require.NoError(b, err)
	// The webhook rejects it until the operator knows the shard.
	testcluster.Eventually(b, time.Minute, "the pool is created", func(ctx context.Context) error {
		_, err := env.NstanceMachinePools().
			Create(ctx, testcluster.NewNstanceMachinePool(name, shard), metav1.CreateOptions{})
		return err
	})
	testcluster.Eventually(b, time.Minute, name+" is reported", func(ctx context.Context) error { return reported(ctx, name, 1) })
}

// scaleAndWait scales a MachinePool and returns how long it takes until the
// server receives the new size for the group of that name.
func scaleAndWait(b *testing.B, server *servertest.Server, name string, size int32) time.Duration {
	b.Helper()
	begin := time.Now()
	env.PatchMachinePool(b, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, size))
	var took time.Duration
	testcluster.Eventually(b, time.Minute, fmt.Sprintf("%s gets size %d", name, size), func(context.Context) error {
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

// reported succeeds when the operator has written the status of a change.
func reported(ctx context.Context, name string, size int32) error {
	group, err := env.ShardGroup(ctx, name, name)
	if err != nil {
		return err
	}
	if group.Spec.Size != size || group.Status.ObservedGeneration != group.Generation || ptr.Deref(group.Status.Replicas, -1) != size {
		return fmt.Errorf("shard group: %+v", group.Status)
	}
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	if len(pool.Spec.ProviderIDList) != int(size) || pool.Status.ObservedGeneration != pool.Generation || ptr.Deref(pool.Status.Replicas, -1) != size {
		return fmt.Errorf("pool: %+v", pool.Status)
	}
	return nil
}

// startFloor does only the work that every operator would have to do.
func startFloor(b *testing.B, server *servertest.Server, name string) {
	b.Helper()
	ctx := b.Context()
	machinePools, err := env.MachinePools().Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	require.NoError(b, err)
	b.Cleanup(machinePools.Stop)
	// Only the operator's account may write a spec of a shard group.
	shardGroups := operatorClient(b).InfrastructureV1beta1().NstanceShardGroups(installation.Namespace)
	groups, err := shardGroups.Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: v1beta1.ShardGroupName(name, name)}))
	require.NoError(b, err)
	b.Cleanup(groups.Stop)
	client := server.Operator(installation.Tenant)

	onChange(machinePools, func(changed *clusterv1.MachinePool) int32 { return *changed.Spec.Replicas }, func(size int32) {
		id := v1beta1.Identifier(name)
		applied := applyv1beta1.NstanceShardGroup(v1beta1.ShardGroupName(name, name), installation.Namespace).
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

// onChange calls act with each new size in the events of a watch.
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
