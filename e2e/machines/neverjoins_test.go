// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// joinsGroup is a static group of the last shard whose userdata is changed.
const joinsGroup = "joins-never"

// New userdata starts the agent and no kubelet that joins. One machine is tried at a time, no Node is
// drained for it, and users see why. With other userdata the rotation goes on. The test is not
// parallel, because the shard gets a short timeout.
func TestMachinesThatNeverJoin(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const name, replicas = joinsGroup, 3
	shard := shardIDs[2]
	testcluster.Eventually(t, time.Minute, "the group is imported", func(ctx context.Context) error {
		_, err := env.MachinePools().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	env.Scale(t, name, replicas)
	t.Cleanup(func() { untilScaledToZero(t, name) })
	env.UntilRunning(t, name, replicas)
	before := ids(t, name)
	require.Len(t, before, replicas)

	setUserdata := func(userdata string, timeout time.Duration) {
		env.Reconfigure(t, shard, func(s *installation.Shard) {
			s.Groups = maps.Clone(s.Groups)
			s.Groups[name] = installation.Group{Userdata: userdata}
			s.RegistrationTimeout = timeout
		})
	}
	t.Cleanup(func() { setUserdata("", 0) })
	setUserdata("\nrm /etc/kubernetes/bootstrap.conf # never joins\n", 40*time.Second)
	// The second one shows that the first was given up.
	containers.untilStarted(t, name, replicas+2)
	testcluster.Eventually(t, time.Minute, "the shard group has the reason", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, name, shard)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, "is not ready after 40s") {
			return fmt.Errorf("its condition Ready is %+v", ready)
		}
		return nil
	})
	assert.Contains(t, env.Kubectl(t, "get", "nssg", "--namespace", installation.Namespace, "--output", "wide"), v1beta1.ReasonProviderError)
	after := ids(t, name)
	for instance, id := range before {
		assert.Equal(t, id, after[instance], "the container of instance %s", instance)
		node, err := env.Kube.CoreV1().Nodes().Get(t.Context(), instance, metav1.GetOptions{})
		require.NoError(t, err)
		assert.False(t, node.Spec.Unschedulable, "Node %s is cordoned", instance)
	}
	assert.LessOrEqual(t, len(after), replicas+1)

	setUserdata("\n# joins again\n", 0)
	replaced := func(t testing.TB, group string) []string {
		return slices.DeleteFunc(containers.removed(t, group), func(instance string) bool { return before[instance] == "" })
	}
	untilCount(t, "replaced", replaced, name, replicas)
	env.UntilRunning(t, name, replicas)
}
