// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// These are the failure modes of the first description of the operator, line by line
// (docs/marekvs.md#failures). The failure mode of two operators at once is in
// TestALeaderThatIsKilledOrStoppedIsReplaced.

// killOperators kills every operator, and returns a function that starts them again.
func killOperators(t *testing.T) (start func()) {
	t.Helper()
	for _, operator := range env.operators {
		require.NoError(t, operator.Kill(t.Context()))
	}
	started := false
	start = func() {
		if started {
			return
		}
		started = true
		// The next leader need not wait until the lease expires.
		_, err := env.kube.CoordinationV1().Leases(marekvsoperator.Namespace).Patch(context.WithoutCancel(t.Context()), lease,
			types.MergePatchType, []byte(`{"spec":{"holderIdentity":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		for _, operator := range env.operators {
			require.NoError(t, operator.Start(context.WithoutCancel(t.Context())))
		}
	}
	t.Cleanup(start)
	return start
}

// eventually waits for a condition outside of the status.
func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		return condition(ctx), nil
	})
	require.NoError(t, err, what)
}

// podUID returns the UID of a Pod that is ready and not being deleted.
func podUID(ctx context.Context, name string) types.UID {
	pod, err := env.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp != nil {
		return ""
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			return pod.UID
		}
	}
	return ""
}

// size returns the number of replicas of a StatefulSet.
func size(t *testing.T, name string) int32 {
	t.Helper()
	set, err := env.kube.AppsV1().StatefulSets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return *set.Spec.Replicas
}

// claims returns the UID of each volume claim of a cluster, by its name.
func claims(t *testing.T, cluster string) map[string]types.UID {
	t.Helper()
	list, err := env.kube.CoreV1().PersistentVolumeClaims(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + cluster})
	require.NoError(t, err)
	found := map[string]types.UID{}
	for i := range list.Items {
		found[list.Items[i].Name] = list.Items[i].UID
	}
	return found
}

// Metrics unreachable: scale-downs are blocked, scale-ups are not, whether a user or the load
// requests them.
func TestFailureMetricsUnreachable(t *testing.T) {
	t.Parallel()
	create(t, "silent", v1alpha1.MarekvsClusterSpec{Nodes: 4, ReplicationFactor: 2})
	until(t, "silent", "4 nodes", healthy(4))
	env.store.SetSilent("silent-1", true)
	patch(t, "silent", `{"spec": {"nodes": 3}}`)
	blocked := until(t, "silent", "a blocked scale-down", func(c *v1alpha1.MarekvsCluster) bool { return c.Status.Phase == v1alpha1.PhaseBlocked })
	assert.Equal(t, "scale-down to 3 deferred: metrics unreachable (3 of 4 pods scraped)", blocked.Status.Message)
	assert.Nil(t, blocked.Status.UnderreplicatedPartitions, "a number of a node that does not report is unknown")
	patch(t, "silent", `{"spec": {"nodes": 5}}`)
	until(t, "silent", "5 nodes in spite of the silent one", func(c *v1alpha1.MarekvsCluster) bool {
		return c.Status.Replicas == 5 && ptr.Deref(c.Status.ReadyNodes, 0) == 5
	})
	patch(t, "silent", `{"spec": {"nodes": 3}}`)
	until(t, "silent", "a blocked scale-down again", func(c *v1alpha1.MarekvsCluster) bool { return c.Status.Phase == v1alpha1.PhaseBlocked })
	assert.EqualValues(t, 5, size(t, "silent"))
	env.store.SetSilent("silent-1", false)
	until(t, "silent", "3 nodes", healthy(3))
	assert.Equal(t, 1, env.store.MostTerminating("silent"))

	create(t, "silent-load", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2, Autoscale: &v1alpha1.Autoscale{
		MinNodes: 3, MaxNodes: 8, TargetOpsPerNode: 1000, ScaleDownStabilizationSeconds: ptr.To[int32](2), ScaleUpCooldownSeconds: ptr.To[int32](1),
	}})
	until(t, "silent-load", "3 nodes", healthy(3))
	env.store.SetSilent("silent-load-2", true)
	env.store.SetRate("silent-load", 6_000) // of which 4,000 are reported
	until(t, "silent-load", "a scale-up by the load that is reported", func(c *v1alpha1.MarekvsCluster) bool { return c.Status.Replicas >= 4 })
}

// Operator down: nothing is scaled, and Pods are replaced without it.
func TestFailureOperatorDown(t *testing.T) {
	create(t, "down", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	until(t, "down", "3 nodes", healthy(3))
	before := podUID(t.Context(), "down-1")
	start := killOperators(t)
	patch(t, "down", `{"spec": {"nodes": 4}}`)
	require.NoError(t, env.kube.CoreV1().Pods(namespace).Delete(t.Context(), "down-1", metav1.DeleteOptions{}))
	eventually(t, "the Pod is replaced", func(ctx context.Context) bool {
		now := podUID(ctx, "down-1")
		return now != "" && now != before
	})
	assert.EqualValues(t, 3, size(t, "down"))
	start()
	until(t, "down", "4 nodes", healthy(4))
}

// Operator restarts in the middle of a scale-down: it observes again and continues, one node
// at a time.
func TestFailureOperatorRestartsDuringScaleDown(t *testing.T) {
	create(t, "restarted", v1alpha1.MarekvsClusterSpec{Nodes: 6, ReplicationFactor: 2})
	until(t, "restarted", "6 nodes", healthy(6))
	patch(t, "restarted", `{"spec": {"nodes": 3}}`)
	for _, nodes := range []int32{5, 4} {
		until(t, "restarted", "a removal to "+strconv.Itoa(int(nodes)), func(*v1alpha1.MarekvsCluster) bool {
			return size(t, "restarted") == nodes
		})
		killOperators(t)()
	}
	until(t, "restarted", "3 nodes", healthy(3))
	assert.Equal(t, 1, env.store.MostTerminating("restarted"), "Pods that ended at once")
	assert.Len(t, claims(t, "restarted"), 6, "claims are kept without reclaimPvcs")
}

// Pod restarts during sampling: its counters begin at 0. No published rate is higher than the load
// or lower than the rate of the other nodes, and the size stays.
func TestFailurePodRestartsDuringSampling(t *testing.T) {
	const load = 12_000
	create(t, "sampled", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2, Autoscale: &v1alpha1.Autoscale{
		MinNodes: 3, MaxNodes: 8, TargetOpsPerNode: 4200, ScaleDownStabilizationSeconds: ptr.To[int32](2), ScaleUpCooldownSeconds: ptr.To[int32](1),
	}})
	until(t, "sampled", "3 nodes", healthy(3))
	env.store.SetRate("sampled", load)
	steady := func(c *v1alpha1.MarekvsCluster) bool {
		rate, err := strconv.ParseFloat(c.Status.OpsPerSecond, 64)
		return err == nil && rate > 0.9*load && rate < 1.1*load
	}
	first := until(t, "sampled", "the rate of the load", steady)

	watcher, err := env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=sampled", ResourceVersion: first.ResourceVersion,
	})
	require.NoError(t, err)
	defer watcher.Stop()
	for restart := range 3 {
		require.NoError(t, env.store.Restart(t.Context(), "sampled-"+strconv.Itoa(restart)))
		eventually(t, "the metrics are read six times more", func(context.Context) bool {
			return env.store.Scrapes("sampled-"+strconv.Itoa(restart)) >= 6
		})
	}
	last := until(t, "sampled", "the rate of the load again", func(c *v1alpha1.MarekvsCluster) bool {
		return steady(c) && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionMetricsAvailable)
	})
	var rates []string
	for last.ResourceVersion != first.ResourceVersion {
		event, open := <-watcher.ResultChan()
		require.True(t, open, "the watch ended before the last status")
		cluster, ok := event.Object.(*v1alpha1.MarekvsCluster)
		require.True(t, ok, "%v", event.Object)
		rates = append(rates, cluster.Status.OpsPerSecond)
		assert.EqualValues(t, 3, cluster.Status.Replicas)
		if cluster.Status.OpsPerSecond != "" {
			rate, err := strconv.ParseFloat(cluster.Status.OpsPerSecond, 64)
			require.NoError(t, err)
			assert.Greater(t, rate, 0.9*load*2/3)
			assert.Less(t, rate, 1.1*load)
		}
		if cluster.ResourceVersion == last.ResourceVersion {
			break
		}
	}
	t.Logf("rates that were published: %v", rates)
	assert.EqualValues(t, 3, size(t, "sampled"))
}

// CR deleted: its objects are deleted, and the volume claims are not. A cluster of the same name
// begins with all of them, and shrinks to its size.
func TestFailureClusterDeleted(t *testing.T) {
	t.Parallel()
	create(t, "again", v1alpha1.MarekvsClusterSpec{Nodes: 5, ReplicationFactor: 2})
	until(t, "again", "5 nodes", healthy(5))
	before := claims(t, "again")
	require.Len(t, before, 5)
	require.NoError(t, env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).Delete(t.Context(), "again", metav1.DeleteOptions{}))
	eventually(t, "Pods and objects are deleted", func(ctx context.Context) bool {
		pods, err := env.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=again"})
		_, set := env.kube.AppsV1().StatefulSets(namespace).Get(ctx, "again", metav1.GetOptions{})
		_, headless := env.kube.CoreV1().Services(namespace).Get(ctx, "again-headless", metav1.GetOptions{})
		_, service := env.kube.CoreV1().Services(namespace).Get(ctx, "again", metav1.GetOptions{})
		_, budget := env.kube.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "again", metav1.GetOptions{})
		return err == nil && len(pods.Items) == 0 && apierrors.IsNotFound(set) && apierrors.IsNotFound(headless) &&
			apierrors.IsNotFound(service) && apierrors.IsNotFound(budget)
	})
	assert.Equal(t, before, claims(t, "again"))
	assert.Equal(t, 5, env.store.MostTerminating("again"), "Pods that ended with the cluster")

	create(t, "again", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	until(t, "again", "5 nodes, one for each volume", func(c *v1alpha1.MarekvsCluster) bool { return ptr.Deref(c.Status.ReadyNodes, 0) == 5 })
	until(t, "again", "3 nodes", healthy(3))
	assert.Equal(t, before, claims(t, "again"))
	assert.Equal(t, 1, env.store.MostTerminating("again"), "Pods that ended at once")
}

// lease is the name of the Lease of the operators.
const lease = "marekvs-operator-leader-election"

// identities matches the identity of each leader in the log of an operator.
var identities = regexp.MustCompile(`"Leader elected" identity="([^"]+)"`)

// leader returns the operator that has the Lease, and the other operator.
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

// One of two operators writes. If it is killed or suspended, the other continues. A suspended
// leader exits as soon as it runs again, without a write.
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
