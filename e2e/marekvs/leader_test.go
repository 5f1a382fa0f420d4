// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// lease is the name of that of the operators.
const lease = "marekvs-operator-leader-election"

// identities are in the log of each operator.
var identities = regexp.MustCompile(`"Leader elected" identity="([^"]+)"`)

// leader returns the operator that has the Lease, and another.
func leader(t *testing.T) (leads, standby *controlplane.Component) {
	t.Helper()
	held, err := env.kube.CoordinationV1().Leases(marekvsoperator.Namespace).Get(t.Context(), lease, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotNil(t, held.Spec.HolderIdentity)
	for _, operator := range env.operators {
		log, err := os.ReadFile(operator.LogPath())
		require.NoError(t, err)
		found := identities.FindAllSubmatch(log, -1)
		if len(found) > 0 && string(found[len(found)-1][1]) == *held.Spec.HolderIdentity {
			leads = operator
		} else {
			standby = operator
		}
	}
	require.NotNil(t, leads, "no operator is %s", *held.Spec.HolderIdentity)
	return leads, standby
}

// takesOver waits until the standby leads and has changed the size of a cluster.
func takesOver(t *testing.T, name string, standby *controlplane.Component, nodes int32) {
	t.Helper()
	begin := time.Now()
	until(t, name, "the size that the standby writes", func(c *v1alpha1.MarekvsCluster) bool { return c.Status.Replicas == nodes })
	t.Logf("the standby has written after %s; the lease is for %s", time.Since(begin).Round(100*time.Millisecond), marekvsoperator.LeaseDuration)
	leads, _ := leader(t)
	require.Equal(t, standby.Name, leads.Name)
	until(t, name, "all nodes", healthy(nodes))
}

// Of two operators one writes. When it is killed the other continues; when it is stopped the
// other continues too, and the former leader exits as soon as it runs again, without a write.
func TestALeaderThatIsKilledOrStoppedIsReplaced(t *testing.T) {
	create(t, "led", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	until(t, "led", "3 nodes", healthy(3))

	killed, standby := leader(t)
	require.NoError(t, killed.Kill(t.Context()))
	patch(t, "led", `{"spec": {"nodes": 4}}`)
	takesOver(t, "led", standby, 4)
	require.NoError(t, killed.Start(t.Context()))

	stopped, standby := leader(t)
	require.NoError(t, stopped.Freeze())
	patch(t, "led", `{"spec": {"nodes": 5}}`)
	takesOver(t, "led", standby, 5)
	before, err := env.kube.AppsV1().StatefulSets(namespace).Get(t.Context(), "led", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, stopped.Thaw())
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		_, running := stopped.PID()
		return !running, nil
	})
	require.NoError(t, err, "the former leader exits")
	after, err := env.kube.AppsV1().StatefulSets(namespace).Get(t.Context(), "led", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, before.ResourceVersion, after.ResourceVersion)
	assert.Equal(t, int32(5), *after.Spec.Replicas)
	log, err := os.ReadFile(stopped.LogPath())
	require.NoError(t, err)
	assert.Contains(t, string(log), "leader election lost")
	require.NoError(t, stopped.Start(t.Context()))
}
