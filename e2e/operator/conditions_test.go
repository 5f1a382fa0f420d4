// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// While a pool is scaled and its instances are replaced nothing is wrong with it. The
// conditions ScalingUp and ScalingDown say what goes on.
func TestReadyStaysTrueWhileScaling(t *testing.T) {
	t.Parallel()
	const name = "steady"
	env.CreatePoolForTest(t, name, 2)
	env.UntilRunning(t, name, 2)
	pool, err := env.NstanceMachinePool(t.Context(), name)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	watch, err := env.NstanceMachinePools().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(), ResourceVersion: pool.ResourceVersion,
	})
	require.NoError(t, err)
	type states struct {
		notReady []string
		up, down bool
	}
	seen := make(chan states, 1)
	go func() {
		var all states
		for event := range watch.ResultChan() {
			changed, ok := event.Object.(*v1beta1.NstanceMachinePool)
			if !ok {
				continue
			}
			conditions := changed.Status.Conditions
			if ready := meta.FindStatusCondition(conditions, v1beta1.ConditionReady); ready == nil || ready.Status != metav1.ConditionTrue {
				all.notReady = append(all.notReady, fmt.Sprintf("%+v", ready))
			}
			all.up = all.up || meta.IsStatusConditionTrue(conditions, v1beta1.ConditionScalingUp)
			all.down = all.down || meta.IsStatusConditionTrue(conditions, v1beta1.ConditionScalingDown)
		}
		seen <- all
	}()

	env.Scale(t, name, 7)
	env.UntilRunning(t, name, 7)
	env.Scale(t, name, 3)
	env.UntilRunning(t, name, 3)
	before := env.NodeNames(t, name)
	_, err = env.NstanceMachinePools().Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"instanceType":"m7i.xlarge"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, 2*time.Minute, "all instances are replaced", func(ctx context.Context) error {
		nodes, err := env.Nodes(ctx, name)
		if err != nil {
			return err
		}
		for i := range nodes {
			for _, old := range before {
				if nodes[i].Name == old {
					return fmt.Errorf("Node %s exists", old)
				}
			}
		}
		return nil
	})
	env.UntilRunning(t, name, 3)
	stop()
	all := <-seen
	assert.Empty(t, all.notReady, "conditions Ready that were not true")
	assert.True(t, all.up, "ScalingUp was never true")
	assert.True(t, all.down, "ScalingDown was never true")
}

// A typed client that writes back what it has read changes nothing.
func TestTypedClientsWriteBackWhatTheyRead(t *testing.T) {
	t.Parallel()
	const name = "typed"
	env.CreatePoolForTest(t, name, 2)
	written := func(version func() (string, error), update func() (string, error)) {
		t.Helper()
		// A status that is written in between is a conflict, and then it is read again.
		testcluster.Eventually(t, 2*time.Minute, "nothing is changed", func(context.Context) error {
			before, err := version()
			if err != nil {
				return err
			}
			after, err := update()
			if err == nil && after != before {
				return fmt.Errorf("resource version %s after %s", after, before)
			}
			return err
		})
	}
	pool, shardGroup, cluster := &v1beta1.NstanceMachinePool{}, &v1beta1.NstanceShardGroup{}, &v1beta1.NstanceCluster{}
	written(func() (version string, err error) {
		pool, err = env.NstanceMachinePool(t.Context(), name)
		return pool.ResourceVersion, err
	}, func() (string, error) {
		written, err := env.NstanceMachinePools().Update(t.Context(), pool, metav1.UpdateOptions{})
		return written.ResourceVersion, err
	})
	written(func() (version string, err error) {
		shardGroup, err = env.NstanceShardGroups().Get(t.Context(), v1beta1.ShardGroupName(name, shardIDs[0]), metav1.GetOptions{})
		return shardGroup.ResourceVersion, err
	}, func() (string, error) {
		written, err := env.NstanceShardGroups().Update(t.Context(), shardGroup, metav1.UpdateOptions{})
		return written.ResourceVersion, err
	})
	clusters := env.Nstance.InfrastructureV1beta1().NstanceClusters(pool.Namespace)
	written(func() (version string, err error) {
		list, err := clusters.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return "", fmt.Errorf("%d NstanceClusters: %w", len(list.Items), err)
		}
		cluster = &list.Items[0]
		return cluster.ResourceVersion, nil
	}, func() (string, error) {
		written, err := clusters.Update(t.Context(), cluster, metav1.UpdateOptions{})
		return written.ResourceVersion, err
	})
	machines := env.NstanceMachines()
	for test, spec := range map[string]v1beta1.NstanceMachineSpec{
		"empty-vars": {GroupRef: v1beta1.GroupReference{Name: name}, Vars: map[string]string{}},
		"all-fields": {GroupRef: v1beta1.GroupReference{Name: name}, Shard: "us-west-2a", InstanceType: "m7i.large", Vars: map[string]string{"a": "b"}},
	} {
		object := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Name: test}, Spec: spec}
		_, err := machines.Create(t.Context(), object, metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { _ = machines.Delete(context.WithoutCancel(t.Context()), test, metav1.DeleteOptions{}) })
		written(func() (version string, err error) {
			object, err = machines.Get(t.Context(), test, metav1.GetOptions{})
			return object.ResourceVersion, err
		}, func() (string, error) {
			written, err := machines.Update(t.Context(), object, metav1.UpdateOptions{})
			return written.ResourceVersion, err
		})
	}
}
