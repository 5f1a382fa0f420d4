// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/shardrelay"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// evil is what the server of the evil shard says beside the truth.
var evil struct {
	// victim is the provider id that it gives instances that are to be drained, "" for their own.
	victim atomic.Pointer[string]
	// groups is how many groups it lists besides its own.
	groups atomic.Int64
}

// startEvilRelay has the operator reach the evil shard through a relay that changes its responses.
func startEvilRelay(ctx context.Context) error {
	relay := &shardrelay.Relay{Response: func(message proto.Message) {
		switch response := message.(type) {
		case *nstancev1.InstanceEvent:
			if victim := evil.victim.Load(); victim != nil {
				response.ProviderInstanceId = *victim
			}
		case *nstancev1.ListGroupsResponse:
			for i := range evil.groups.Load() {
				response.Groups = append(response.Groups, &nstancev1.GroupStatus{Key: fmt.Sprintf("flood-%d", i), Tenant: installation.Tenant})
			}
		}
	}}
	address, err := relay.Start(ctx, env.Installation, evilShard)
	if err != nil {
		return err
	}
	return env.SetShardAddress(ctx, evilShard, address)
}

// A compromised shard server drains no Node of another shard, floods neither the operator nor the
// API server, and keeps no other shard from being served.
func TestShardServer(t *testing.T) {
	const pool, honest = "crew", "honest"
	expectAlive(t, env.Operator.Component)
	require.NoError(t, env.CreatePoolOn(t.Context(), pool, 2, evilShard))
	require.NoError(t, env.CreatePoolOn(t.Context(), honest, 1, honestShard))
	env.UntilRunning(t, pool, 2)
	env.UntilRunning(t, honest, 1)

	nodes, err := env.Nodes(t.Context(), honest)
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	victim := nodes[0]
	env.CreateNamespace(t, "victims")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "victim", Namespace: "victims"},
		Spec: corev1.PodSpec{
			NodeName: victim.Name, AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	env.CreatePods(t, timeout, pod)

	// A drain with the provider id of a Node of another shard.
	from := env.AuditEnd(t)
	t.Cleanup(func() {
		evil.groups.Store(0)
		evil.victim.Store(nil)
	})
	evil.victim.Store(&victim.Spec.ProviderID)
	env.Scale(t, pool, 1)
	testcluster.Eventually(t, timeout, "the drain is refused", func(ctx context.Context) error {
		events, err := env.Kube.EventsV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + v1beta1.ReasonNodeOfOtherShard})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("no event with the reason " + v1beta1.ReasonNodeOfOtherShard)
		}
		return err
	})
	kept, err := env.Kube.CoreV1().Nodes().Get(t.Context(), victim.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.False(t, kept.Spec.Unschedulable, "the Node of another shard is cordoned")
	running, err := env.Kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Nil(t, running.DeletionTimestamp, "the Pod on the Node of another shard")
	evictions := env.OperatorWrites(t, from, func(r controlplane.Request) bool {
		return r.Subresource == "eviction" && r.Name == pod.Name || r.Resource == "nodes" && r.Name == victim.Name
	})
	assert.Empty(t, evictions, "writes to the Node and its Pod:%s", testcluster.Describe(evictions))

	// Many groups.
	before := countPools(t)
	flooded(t, env.Operator.Component, func() {
		evil.groups.Store(int64(tier.Pick(20_000, 500_000)))
		// The operator lists the groups when it has lost the stream.
		testcluster.Kill(t, env.ShardServer(evilShard))
		testcluster.Start(t, env.ShardServer(evilShard))
		testcluster.Eventually(t, timeout, "the list of groups is refused", func(ctx context.Context) error {
			group, err := env.ShardGroup(ctx, pool, evilShard)
			if err != nil {
				return err
			}
			return testcluster.HasCondition(group.Status.Conditions, v1beta1.ConditionShardReachable, metav1.ConditionFalse, v1beta1.ReasonShardLimitExceeded)
		})
	})
	assert.Equal(t, before, countPools(t), "pools after the flood")
	env.Scale(t, honest, 2)
	env.UntilRunning(t, honest, 2)
	evil.groups.Store(0)
	env.UntilShardsReachable(t, pool, metav1.ConditionTrue, v1beta1.ReasonReachable)
}

func countPools(t *testing.T) int {
	t.Helper()
	list, err := env.NstanceMachinePools().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return len(list.Items)
}
