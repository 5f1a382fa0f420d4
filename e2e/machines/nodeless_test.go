// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A kubelet does not register again after its Node was deleted: pool, event and plugin name the
// instance, and a MachineHealthCheck has it replaced. The operator waits for five minutes before
// it calls an instance without a Node a problem.
func TestInstanceWithoutNode(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	const name, replicas = "nodeless", 2
	pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
	pool.Spec.MachineMode = v1beta1.MachineModeAlways
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	t.Cleanup(func() { env.DeletePools(t, name) })
	env.UntilRunning(t, name, replicas)
	before := ids(t, name)
	instance := containers.started(t, name)[0]
	node, err := env.Kube.CoreV1().Nodes().Get(t.Context(), instance, metav1.GetOptions{})
	require.NoError(t, err)

	require.NoError(t, env.Kube.CoreV1().Nodes().Delete(t.Context(), instance, metav1.DeleteOptions{}))
	testcluster.EventuallyEvery(t, 5*time.Second, 10*time.Minute, "the pool names the instance", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		conditions := pool.Status.Conditions
		if err := errors.Join(
			testcluster.HasCondition(conditions, v1beta1.ConditionNodesJoined, metav1.ConditionFalse, v1beta1.ReasonNodeMissing),
			testcluster.HasCondition(conditions, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonNodeMissing)); err != nil {
			return err
		}
		if message := meta.FindStatusCondition(conditions, v1beta1.ConditionNodesJoined).Message; !strings.Contains(message, node.Spec.ProviderID) {
			return fmt.Errorf("its message is %q", message)
		}
		return nil
	})
	testcluster.Eventually(t, time.Minute, "an event of the pool reports it", func(ctx context.Context) error {
		count, err := env.CountEvents(ctx, name, v1beta1.ReasonNodeMissing)
		if err == nil && count != 1 {
			err = fmt.Errorf("%d events", count)
		}
		return err
	})
	assert.Equal(t, before, ids(t, name), "nothing is replaced unless a MachineHealthCheck asks for it")

	env.CreateHealthCheck(t, name)
	containers.untilRemoved(t, name, 1)
	env.UntilRunning(t, name, replicas)
	assert.Equal(t, []string{instance}, containers.removed(t, name))
	pool, err = env.NstanceMachinePool(t.Context(), name)
	require.NoError(t, err)
	assert.NoError(t, testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionNodesJoined, metav1.ConditionTrue, v1beta1.ReasonNodesJoined))
}
