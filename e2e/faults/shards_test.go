// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/servertest"
)

func (o *faultyOperator) shardFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "a shard is down at the start", Happen: testcluster.During(func(t *testing.T) {
			shard := env.ShardServer(shardIDs[2])
			require.NoError(t, shard.Kill(t.Context()))
			defer testcluster.Start(t, shard)
			untilUnreachable(t, v1beta1.ReasonShardUnreachable)
			o.restart(t)
			o.untilWorking(t)
			untilUnreachable(t, v1beta1.ReasonShardUnreachable)
		})},
		{Name: "a shard hangs at the start", Happen: testcluster.During(func(t *testing.T) {
			defer testcluster.Freeze(t, env.ShardServer(shardIDs[0]))()
			o.restart(t)
			untilUnreachable(t, v1beta1.ReasonShardUnreachable)
		})},
	}, testcluster.OnlyInFull(
		// The kernel accepts connections to a suspended process.
		testcluster.Fault{Name: "a shard accepts connections and never reads", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			silent, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer silent.Close()
			env.EditShards(t, func(data map[string]string) { data[shardIDs[1]] = silent.Addr().String() })
			o.restart(t)
			untilUnreachable(t, v1beta1.ReasonShardUnreachable)
		})},
	)...)
}

// A shard is unreachable if its address is the address of another shard. The operator ignores the
// groups of the other server, so nothing is deleted, and sends nothing there. The other shards
// continue.
func TestWrongShard(t *testing.T) {
	const name = "misled"
	o := runFaultyOperator(t)
	replicas := int32(7)
	pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
	pool.Spec.MachineMode = v1beta1.MachineModeAlways
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	env.UntilRunning(t, name, replicas)

	a, b, c := shardIDs[0], shardIDs[1], shardIDs[2]
	for _, test := range []struct {
		name   string
		change func(data map[string]string)
		reason string
		// right is a shard that grows during the fault.
		right string
	}{
		{"addresses are swapped", func(data map[string]string) { data[a], data[c] = data[c], data[a] }, v1beta1.ReasonWrongShard, b},
		{"two shards have one address", func(data map[string]string) { data[a] = data[b] }, v1beta1.ReasonUnknownShard, c},
	} {
		t.Run(test.name, func(t *testing.T) {
			restore := env.SaveConfigMap(t, "nstance-shards")
			from, calls := env.AuditEnd(t), countCalls(t)
			env.EditShards(t, test.change)
			if test.reason == v1beta1.ReasonWrongShard {
				env.UntilShardsReachable(t, name, metav1.ConditionFalse, test.reason)
			}
			// The operator restarts, so that its cache is empty.
			o.restart(t)
			env.UntilShardsReachable(t, name, metav1.ConditionFalse, test.reason)

			replicas += 3
			env.Scale(t, name, replicas)
			testcluster.Eventually(t, time.Minute, "shard "+test.right+" grows", func(context.Context) error {
				if now := countCalls(t)[test.right]; now == calls[test.right] {
					return fmt.Errorf("%d calls as before", now)
				}
				return nil
			})
			if deletions := env.Requests(t, from, testcluster.IsDeletion); len(deletions) > 0 {
				t.Errorf("%d deletions:%s", len(deletions), testcluster.Describe(deletions))
			}
			for _, shard := range shardIDs {
				if received := env.Calls(t, shard)[calls[shard]:]; shard != test.right {
					assert.Empty(t, received, "shard %s", shard)
				}
			}
			restore()
			env.UntilRunning(t, name, replicas)
			if deletions := env.Requests(t, from, testcluster.IsDeletion); len(deletions) > 0 {
				t.Errorf("%d deletions after the correction:%s", len(deletions), testcluster.Describe(deletions))
			}
		})
	}
}

// countCalls returns how many calls that change groups each shard has received.
func countCalls(t *testing.T) map[string]int {
	t.Helper()
	calls := map[string]int{}
	for _, shard := range shardIDs {
		calls[shard] = len(env.Calls(t, shard))
	}
	return calls
}

// namelessIDs are shards whose servers do not name them.
var namelessIDs = []string{"us-west-3a", "us-west-3b", "us-west-3c"}

// startNameless starts the server of a shard, whose instances are Nodes of the cluster.
func startNameless(t *testing.T, shard string) *servertest.Server {
	t.Helper()
	return servertest.Start(t, servertest.Options{
		Cluster: installation.ClusterID, Shard: shard, Nameless: true, Authority: env.Installation.Authority(), Kubernetes: env.Kube,
	})
}

// changes returns how many calls that change something a server has received.
func changes(server *servertest.Server) int {
	return len(server.Calls("UpsertGroup", "DeleteGroup", "CreateInstance", "DeleteInstance", "AcknowledgeDrained", "RenewCertificate"))
}

// A wrong address is noticed without the help of the server's certificate: by the
// instances that the operator knows, also after a restart.
func TestWrongShardOfServersThatNameNone(t *testing.T) {
	const name = "nameless"
	o := runFaultyOperator(t)
	t.Cleanup(env.SaveConfigMap(t, "nstance-shards"))
	servers := map[string]*servertest.Server{}
	for _, id := range namelessIDs {
		servers[id] = startNameless(t, id)
	}
	a, b, c := namelessIDs[0], namelessIDs[1], namelessIDs[2]
	connect := func(t *testing.T, servers map[string]*servertest.Server) {
		t.Helper()
		env.EditShards(t, func(data map[string]string) {
			for id, server := range servers {
				data[id] = server.Addr
			}
		})
	}
	connect(t, servers)
	replacement := startNameless(t, "us-west-3d")
	replicas := int32(7)
	pool := testcluster.NewNstanceMachinePool(name, namelessIDs...)
	pool.Spec.MachineMode = v1beta1.MachineModeAlways
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	t.Cleanup(func() { env.DeletePools(t, name) })
	env.UntilRunning(t, name, replicas)

	from := env.AuditEnd(t)
	expectNoDeletion := func(t *testing.T) {
		t.Helper()
		if deletions := env.Requests(t, from, testcluster.IsDeletion); len(deletions) > 0 {
			t.Errorf("%d deletions:%s", len(deletions), testcluster.Describe(deletions))
		}
	}
	t.Run("addresses are swapped", func(t *testing.T) {
		before := map[string]int{a: changes(servers[a]), b: changes(servers[b]), c: changes(servers[c])}
		connect(t, map[string]*servertest.Server{a: servers[c], c: servers[a]})
		env.UntilShardsReachable(t, name, metav1.ConditionFalse, v1beta1.ReasonWrongShard)
		// The operator restarts, so that its cache is empty.
		o.restart(t)
		env.UntilShardsReachable(t, name, metav1.ConditionFalse, v1beta1.ReasonWrongShard)
		replicas += 3
		env.Scale(t, name, replicas)
		testcluster.Eventually(t, time.Minute, "shard "+b+" grows", func(context.Context) error {
			if changes(servers[b]) == before[b] {
				return errors.New("no call")
			}
			return nil
		})
		expectNoDeletion(t)
		assert.Equal(t, before[a], changes(servers[a]), "calls to the server of "+a)
		assert.Equal(t, before[c], changes(servers[c]), "calls to the server of "+c)
		connect(t, servers)
		env.UntilRunning(t, name, replicas)
		expectNoDeletion(t)
	})
	t.Run("another server is confirmed", func(t *testing.T) {
		servers[a].Stop()
		connect(t, map[string]*servertest.Server{a: replacement})
		env.UntilShardsReachable(t, name, metav1.ConditionFalse, v1beta1.ReasonWrongShard)
		expectNoDeletion(t)
		assert.Zero(t, changes(replacement))
		_, err := env.Kube.CoreV1().ConfigMaps(installation.Namespace).Patch(t.Context(), "nstance-shards", types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1beta1.AnnotationConfirmAddress+a, replacement.Addr), metav1.PatchOptions{})
		require.NoError(t, err)
		env.UntilRunning(t, name, replicas)
		assert.NotZero(t, changes(replacement))
	})
}

// testZoneWithoutStock: a shard without capacity for a type lends the replicas of its pool to the
// other shards, and gets them back when the pool grows. No running instance is terminated for
// that. A Pod gets its machine from another shard.
func testZoneWithoutStock(t *testing.T) {
	const name, builders, scarce = "stockless", "stockless-builders", "m7i.xlarge"
	lender := shardIDs[0]
	env.SetQuota(t, lender, map[string]int{scarce: 0})
	t.Cleanup(func() { env.SetQuota(t, lender, nil) })
	for pool, replicas := range map[string]int32{name: 9, builders: 0} {
		wanted := testcluster.NewNstanceMachinePool(pool, shardIDs...)
		wanted.Spec.InstanceType = scarce
		wanted.Spec.Shortfall = &v1beta1.ShortfallSettings{Policy: v1beta1.ShortfallMove, AfterSeconds: 5}
		require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(pool, replicas), wanted))
	}
	untilShortfall(t, name, v1beta1.ReasonMoved,
		fmt.Sprintf("3 of 9 instances are lent by shard %s to shards %s (2), %s (1)", lender, shardIDs[1], shardIDs[2]))
	env.UntilRunning(t, name, 9)
	require.NoError(t, env.SizesAre(t.Context(), name, 0, 5, 4))
	before := env.NodeNames(t, name)
	from := env.AuditEnd(t)

	pod, err := env.Kube.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: builders}},
		Spec: corev1.PodSpec{
			NodeSelector:                 map[string]string{"example.com/none": "none"},
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, 2*time.Minute, "the machine of the Pod runs", func(ctx context.Context) error {
		machine, err := env.NstanceMachines().Get(ctx, "on-demand-"+string(pod.UID), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if machine.Status.Shard == lender && machine.Status.InstanceID != "" {
			t.Errorf("the instance %s is on the shard without stock", machine.Status.InstanceID)
		}
		return testcluster.HasCondition(machine.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady)
	})

	env.SetQuota(t, lender, nil)
	env.Scale(t, name, 12)
	untilShortfall(t, name, v1beta1.ReasonMoved, fmt.Sprintf("1 of 12 instances are lent by shard %s to shard %s (1)", lender, shardIDs[1]))
	env.UntilRunning(t, name, 12)
	require.NoError(t, env.SizesAre(t.Context(), name, 3, 5, 4))
	assert.Subset(t, env.NodeNames(t, name), before, "the Nodes from before")
	deleted := env.Writes(t, from, func(r controlplane.Request) bool { return r.Resource == "nodes" && r.Verb == "delete" })
	assert.Empty(t, deleted, "Nodes were deleted:%v", deleted)

	env.Scale(t, name, 15)
	env.UntilRunning(t, name, 15)
	require.NoError(t, env.SizesAre(t.Context(), name, 5, 5, 5))
	testcluster.Eventually(t, time.Minute, "nothing is lent", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionCapacityAvailable, metav1.ConditionTrue, v1beta1.ReasonNoShortfall)
	})
}

// untilShortfall waits for the condition CapacityAvailable of a pool.
func untilShortfall(t *testing.T, name, reason, message string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the pool reports "+message, func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		short := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionCapacityAvailable)
		if short == nil || short.Reason != reason || short.Message != message {
			group, err := env.Group(ctx, shardIDs[0], name)
			return fmt.Errorf("the condition is %+v, the sizes are: %w; shard %s has %v, %w", short, env.SizesAre(ctx, name), shardIDs[0], group, err)
		}
		return nil
	})
}
