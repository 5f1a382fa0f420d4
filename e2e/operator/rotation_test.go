// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A paused rotation replaces nothing, and a rotation that goes on begins with its canary, keeps to
// the budget of the pool at each moment, and replaces every instance. A pool at rest is not written.
func TestARotationKeepsToItsPolicy(t *testing.T) {
	t.Parallel()
	const name, surge = "rotated", 3
	env.CreatePoolForTest(t, name, 6)
	env.UntilRunning(t, name, 6)
	patch := func(patch string) {
		t.Helper()
		_, err := env.PatchNstanceMachinePool(t.Context(), name, patch)
		require.NoError(t, err)
	}
	rollingOut := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		testcluster.Eventually(t, 3*time.Minute, "RollingOut is "+reason, func(ctx context.Context) error {
			pool, err := env.NstanceMachinePool(ctx, name)
			if err != nil {
				return err
			}
			return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionRollingOut, status, reason)
		})
	}
	before := env.NodeNames(t, name)
	patch(`{"spec":{"rotation":{"maxSurge":"50%","canary":1,"paused":true}}}`)
	rollingOut(metav1.ConditionFalse, v1beta1.ReasonNotRollingOut)
	patch(`{"spec":{"instanceType":"m7i.xlarge"}}`)
	rollingOut(metav1.ConditionTrue, v1beta1.ReasonPaused)
	env.UntilNoWrites(t, 2*time.Minute, 50, testcluster.ByOperator, writesPool(name))
	assert.ElementsMatch(t, before, env.NodeNames(t, name), "a paused rotation replaces nothing")

	groups, err := env.NstanceShardGroups().List(t.Context(), ofGroup(name))
	require.NoError(t, err)
	grants := map[string]*v1beta1.RotationGrant{}
	for i := range groups.Items {
		grants[string(groups.Items[i].Spec.Shard)] = groups.Items[i].Spec.Rotation
	}
	ctx, stop := context.WithCancel(t.Context())
	options := ofGroup(name)
	options.ResourceVersion = groups.ResourceVersion
	watch, err := env.NstanceShardGroups().Watch(ctx, options)
	require.NoError(t, err)
	broken := make(chan []string, 1)
	go func() {
		var all []string
		canary := true
		for event := range watch.ResultChan() {
			group, ok := event.Object.(*v1beta1.NstanceShardGroup)
			if !ok || group.Spec.Rotation == nil {
				continue
			}
			grants[string(group.Spec.Shard)] = group.Spec.Rotation
			var sum, upToDate int32
			for _, grant := range grants {
				sum += grant.MaxSurge
				upToDate += grant.UpToDate
			}
			if sum > surge {
				all = append(all, fmt.Sprintf("a surge of %d: %+v", sum, grants))
			}
			if canary && upToDate > 0 {
				canary = false
				if first := grants[shardIDs[0]]; upToDate != 1 || first.UpToDate != 1 {
					all = append(all, fmt.Sprintf("it begins without a canary: %+v", grants))
				}
			}
		}
		broken <- all
	}()
	patch(`{"spec":{"rotation":{"paused":null}}}`)
	rollingOut(metav1.ConditionFalse, v1beta1.ReasonNotRollingOut)
	env.UntilRunning(t, name, 6)
	stop()
	assert.Empty(t, <-broken)
	for _, node := range env.NodeNames(t, name) {
		assert.False(t, slices.Contains(before, node), "Node %s is from before", node)
	}
	env.UntilNoWrites(t, 2*time.Minute, 50, testcluster.ByOperator, writesPool(name))
}

// The instance of an annotated Node is replaced, also while the rotation of its pool is paused, and no
// other is.
func TestTheInstanceOfAnAnnotatedNodeIsReplaced(t *testing.T) {
	t.Parallel()
	const name = "remediated"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	_, err := env.PatchNstanceMachinePool(t.Context(), name, `{"spec":{"rotation":{"paused":true}}}`)
	require.NoError(t, err)
	before := env.NodeNames(t, name)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:""}}}`, v1beta1.AnnotationRemediateInstance)
	_, err = env.NodeKube.CoreV1().Nodes().Patch(t.Context(), before[0], types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, 2*time.Minute, "the instance is replaced", func(ctx context.Context) error {
		nodes, err := env.Nodes(ctx, name)
		if err != nil {
			return err
		}
		for i := range nodes {
			if nodes[i].Name == before[0] {
				return fmt.Errorf("Node %s exists", nodes[i].Name)
			}
		}
		return nil
	})
	env.UntilRunning(t, name, 3)
	assert.Subset(t, env.NodeNames(t, name), before[1:], "the others stay")
	testcluster.Eventually(t, time.Minute, "no instance is named any more", func(ctx context.Context) error {
		groups, err := env.ShardGroups(ctx, name)
		for i := range groups {
			if len(groups[i].Spec.Replace) > 0 {
				err = fmt.Errorf("shard group %s has %v", groups[i].Name, groups[i].Spec.Replace)
			}
		}
		return err
	})
}

// writesPool matches requests for a pool or its shard groups.
func writesPool(name string) testcluster.Match {
	return func(r controlplane.Request) bool {
		return r.Group == v1beta1.GroupName && (r.Name == name || strings.HasPrefix(r.Name, name+"--"))
	}
}

// ofGroup selects the shard groups of a group.
func ofGroup(name string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labels.Set{v1beta1.LabelGroup: name}.String()}
}
