// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// testZoneWithoutStock has a shard that has no more instances of a type lend those of its pool
// to the others, and get them back when the pool grows. Nothing that runs is terminated for
// that. A Pod gets its machine from another shard.
func testZoneWithoutStock(t *testing.T) {
	const name, builders, scarce = "stockless", "stockless-builders", "m7i.xlarge"
	lender := shardIDs[0]
	setQuota(t, lender, map[string]int{scarce: 0})
	t.Cleanup(func() { setQuota(t, lender, nil) })
	for pool, replicas := range map[string]int32{name: 9, builders: 0} {
		wanted := testcluster.NewNstanceMachinePool(pool, shardIDs...)
		wanted.Spec.InstanceType = scarce
		wanted.Spec.OnShortfall = v1beta1.ShortfallMove
		wanted.Spec.ShortfallAfter = &metav1.Duration{Duration: 5 * time.Second}
		require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(pool, replicas), wanted))
	}
	untilShortfall(t, name, v1beta1.ReasonMoved,
		fmt.Sprintf("3 of 9 instances are lent by shard %s to shards %s (2), %s (1)", lender, shardIDs[1], shardIDs[2]))
	env.UntilRunning(t, name, 9)
	require.NoError(t, env.SizesAre(t.Context(), name, 0, 5, 4))
	before := nodeNames(t, name)
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

	setQuota(t, lender, nil)
	env.Scale(t, name, 12)
	untilShortfall(t, name, v1beta1.ReasonMoved, fmt.Sprintf("1 of 12 instances are lent by shard %s to shard %s (1)", lender, shardIDs[1]))
	env.UntilRunning(t, name, 12)
	require.NoError(t, env.SizesAre(t.Context(), name, 3, 5, 4))
	assert.Subset(t, nodeNames(t, name), before, "the Nodes from before")
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
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionShortfall, metav1.ConditionFalse, v1beta1.ReasonNoShortfall)
	})
}

// untilShortfall waits for the condition Shortfall of a pool.
func untilShortfall(t *testing.T, name, reason, message string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the pool reports "+message, func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		short := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionShortfall)
		if short == nil || short.Reason != reason || short.Message != message {
			return fmt.Errorf("the condition is %+v", short)
		}
		return nil
	})
}

func nodeNames(t *testing.T, group string) (names []string) {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), group)
	require.NoError(t, err)
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	return names
}

// setQuota sets how many instances of each type a shard may have.
func setQuota(t *testing.T, shard string, quota map[string]int) {
	t.Helper()
	require.NoError(t, env.Installation.Reconfigure(shard, func(s *installation.Shard) { s.Quota = quota }))
	// The server reads its configuration only now and then.
	_, err := env.ShardClient(t, shard).RefreshConfig(context.WithoutCancel(t.Context()), &emptypb.Empty{})
	require.NoError(t, err)
}
