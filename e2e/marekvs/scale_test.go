// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// create creates a cluster, which is deleted at the end of the test.
func create(t *testing.T, name string, spec v1alpha1.MarekvsClusterSpec) {
	t.Helper()
	if spec.Image == "" {
		spec.Image = "marekvs:1"
	}
	clusters := env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace)
	_, err := clusters.Create(t.Context(), &v1alpha1.MarekvsCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = clusters.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}) })
}

// until waits for a state of a cluster.
func until(t *testing.T, name, what string, condition func(*v1alpha1.MarekvsCluster) bool) *v1alpha1.MarekvsCluster {
	t.Helper()
	var cluster *v1alpha1.MarekvsCluster
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		var err error
		cluster, err = env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && condition(cluster), nil
	})
	require.NoError(t, err, "%s: the status is %+v", what, cluster.Status)
	return cluster
}

func healthy(nodes int32) func(*v1alpha1.MarekvsCluster) bool {
	return func(c *v1alpha1.MarekvsCluster) bool {
		return c.Status.Phase == v1alpha1.PhaseHealthy && c.Status.Replicas == nodes && *c.Status.ReadyNodes == nodes &&
			meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady) && c.Status.ObservedGeneration == c.Generation
	}
}

func patch(t *testing.T, name, body string) {
	t.Helper()
	_, err := env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	require.NoError(t, err)
}

// resize sets the size as kubectl scale does.
func resize(t *testing.T, name, body string) error {
	t.Helper()
	return env.marekvs.MarekvsV1alpha1().RESTClient().Patch(types.MergePatchType).
		Namespace(namespace).Resource("marekvsclusters").Name(name).SubResource("scale").Body([]byte(body)).Do(t.Context()).Error()
}

// A size can be changed with kubectl scale, and a shrink never has two Pods ending at once.
func TestFixedSize(t *testing.T) {
	t.Parallel()
	create(t, "fixed", v1alpha1.MarekvsClusterSpec{Nodes: 6, ReplicationFactor: 2, ReclaimPvcs: true, ReclaimAfterSeconds: 1})
	until(t, "fixed", "6 nodes", healthy(6))
	require.NoError(t, resize(t, "fixed", `{"spec": {"replicas": 3}}`))
	until(t, "fixed", "3 nodes", healthy(3))
	assert.Equal(t, 1, env.store.MostTerminating("fixed"), "Pods that ended at once")
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		claims, err := env.kube.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=fixed"})
		return err == nil && len(claims.Items) == 3, nil
	})
	require.NoError(t, err, "the claims of removed nodes are deleted, and no others")
}

// The example of the first description, with short windows, and its first failure mode.
func TestWorkedExample(t *testing.T) {
	t.Parallel()
	create(t, "demo", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2, Autoscale: &v1alpha1.Autoscale{
		MinNodes: 3, MaxNodes: 8, TargetOpsPerNode: 5000, ScaleDownStabilizationSeconds: ptr.To[int32](4), ScaleUpCooldownSeconds: ptr.To[int32](1),
	}})
	until(t, "demo", "3 nodes", healthy(3))
	env.store.SetRate("demo", 22_000)
	until(t, "demo", "5 nodes", healthy(5))
	env.store.SetUnderreplicated("demo", 3)
	env.store.SetRate("demo", 6_000)
	blocked := until(t, "demo", "blocked", func(c *v1alpha1.MarekvsCluster) bool { return c.Status.Phase == v1alpha1.PhaseBlocked })
	assert.Equal(t, "scale-down to 4 deferred: 3 partitions under-replicated", blocked.Status.Message)
	assert.True(t, meta.IsStatusConditionTrue(blocked.Status.Conditions, v1alpha1.ConditionScaleDownBlocked))
	env.store.SetUnderreplicated("demo", 0)
	until(t, "demo", "3 nodes again", healthy(3))
	assert.Equal(t, 1, env.store.MostTerminating("demo"), "Pods that ended at once")
	err := resize(t, "demo", `{"spec": {"replicas": 5}}`)
	assert.True(t, apierrors.IsInvalid(err), "scaled by hand while autoscale is set: %v", err)
}

// podImages returns the image of each Pod of a cluster.
func podImages(t *testing.T, cluster string) map[string]string {
	t.Helper()
	pods, err := env.kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + cluster})
	require.NoError(t, err)
	found := map[string]string{}
	for i := range pods.Items {
		found[pods.Items[i].Name] = pods.Items[i].Spec.Containers[0].Image
	}
	return found
}

// A new cluster whose image does not start is repaired through its spec, and its StatefulSet then has the
// update strategy that it had before.
func TestAWrongImageOfANewClusterIsCorrected(t *testing.T) {
	t.Parallel()
	env.store.Fail("marekvs:typo")
	create(t, "corrected", v1alpha1.MarekvsClusterSpec{Image: "marekvs:typo", Nodes: 3, ReplicationFactor: 2})
	eventually(t, "no container starts", func(ctx context.Context) bool {
		pods, err := env.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=corrected"})
		waiting := 0
		for i := range pods.Items {
			for _, status := range pods.Items[i].Status.ContainerStatuses {
				if status.State.Waiting != nil {
					waiting++
				}
			}
		}
		return err == nil && waiting == 3
	})
	patch(t, "corrected", `{"spec": {"image": "marekvs:1"}}`)
	until(t, "corrected", "3 nodes", func(c *v1alpha1.MarekvsCluster) bool {
		return healthy(3)(c) && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionRolledOut)
	})
	assert.Equal(t, map[string]string{"corrected-0": "marekvs:1", "corrected-1": "marekvs:1", "corrected-2": "marekvs:1"}, podImages(t, "corrected"))
	eventually(t, "the partition rests at the size", func(ctx context.Context) bool {
		set, err := env.kube.AppsV1().StatefulSets(namespace).Get(ctx, "corrected", metav1.GetOptions{})
		return err == nil && set.Spec.UpdateStrategy.RollingUpdate != nil && ptr.Deref(set.Spec.UpdateStrategy.RollingUpdate.Partition, 0) == 3
	})
}

// Nodes report at most as many copies as they keep. A larger number is rolled out nevertheless.
func TestALargerReplicationFactorIsRolledOut(t *testing.T) {
	t.Parallel()
	create(t, "copies", v1alpha1.MarekvsClusterSpec{Nodes: 4, ReplicationFactor: 2})
	until(t, "copies", "4 nodes", healthy(4))
	patch(t, "copies", `{"spec": {"replicationFactor": 3}}`)
	eventually(t, "every node keeps 3 copies", func(ctx context.Context) bool {
		pods, err := env.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=copies"})
		updated := 0
		for i := range pods.Items {
			for _, variable := range pods.Items[i].Spec.Containers[0].Env {
				if variable.Name == "MAREKVS_REPLICAS_N" && variable.Value == "3" {
					updated++
				}
			}
		}
		return err == nil && updated == 4
	})
	until(t, "copies", "4 nodes", healthy(4))
}

// A failing image halts at one Pod, and a repaired one is rolled out to every Pod.
func TestRollout(t *testing.T) {
	t.Parallel()
	create(t, "rollout", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	until(t, "rollout", "3 nodes", healthy(3))
	env.store.Fail("marekvs:broken")
	patch(t, "rollout", `{"spec": {"image": "marekvs:broken"}}`)
	until(t, "rollout", "halted", func(c *v1alpha1.MarekvsCluster) bool {
		rolled := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionRolledOut)
		return rolled != nil && rolled.Reason == v1alpha1.ReasonRolloutHalted
	})
	assert.Equal(t, map[string]string{"rollout-0": "marekvs:1", "rollout-1": "marekvs:1", "rollout-2": "marekvs:broken"}, podImages(t, "rollout"))
	patch(t, "rollout", `{"spec": {"image": "marekvs:2"}}`)
	until(t, "rollout", "rolled out", func(c *v1alpha1.MarekvsCluster) bool {
		return healthy(3)(c) && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionRolledOut)
	})
	assert.Equal(t, map[string]string{"rollout-0": "marekvs:2", "rollout-1": "marekvs:2", "rollout-2": "marekvs:2"}, podImages(t, "rollout"))
}

// The API server decides which operators a toleration may have. Its answer is in the status.
func TestTolerationThatKubernetesRejects(t *testing.T) {
	t.Parallel()
	create(t, "tolerant", v1alpha1.MarekvsClusterSpec{Tolerations: []v1alpha1.Toleration{{Key: "a", Operator: "Between"}}})
	until(t, "tolerant", "a failed write", func(c *v1alpha1.MarekvsCluster) bool {
		reconciled := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionReconciled)
		return reconciled != nil && reconciled.Reason == v1alpha1.ReasonApplyFailed && strings.Contains(reconciled.Message, "tolerations[0].operator")
	})
	patch(t, "tolerant", `{"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}`)
	until(t, "tolerant", "3 nodes", healthy(3))
}

// kubectl waits until a change is complete, lists the kind by its category, and shows the message
// in the wide output.
func TestKubectlWaitsForACluster(t *testing.T) {
	t.Parallel()
	create(t, "waited", v1alpha1.MarekvsClusterSpec{})
	wait := func() {
		t.Helper()
		kubectl(t, "wait", "--for=condition=Ready", "--timeout=2m", "mkv/waited")
	}
	wait()
	until(t, "waited", "3 nodes", healthy(3))
	kubectl(t, "scale", "mkv/waited", "--replicas=5")
	wait()
	cluster := until(t, "waited", "5 nodes", healthy(5))
	assert.Equal(t, int32(5), cluster.Status.Replicas)
	assert.Contains(t, kubectl(t, "get", "marekvs", "--output=name"), "marekvscluster.marekvs.io/waited\n")
	assert.NotContains(t, kubectl(t, "get", "mkv", "waited"), "MESSAGE")
	assert.Contains(t, kubectl(t, "get", "mkv", "waited", "--output=wide"), "at target 5")
}

// kubectl runs kubectl in the namespace of the tests, and returns what it printed.
func kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	arguments = append([]string{"kubectl", "--kubeconfig", env.controlPlane.KubeconfigPath(), "--namespace", namespace}, arguments...)
	output, err := exec.CommandContext(t.Context(), env.binaries.Kube, arguments...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return string(output)
}

// Two clusters whose Services have the same name do not take it from each other: the first keeps
// its Service, and the second reports the conflict.
func TestTwoClustersWithOneServiceName(t *testing.T) {
	t.Parallel()
	spec := v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2}
	create(t, "twin", spec)
	until(t, "twin", "3 nodes", healthy(3))
	services := env.kube.CoreV1().Services(namespace)
	before, err := services.Get(t.Context(), "twin-headless", metav1.GetOptions{})
	require.NoError(t, err)
	create(t, "twin-headless", spec)
	until(t, "twin-headless", "a conflict", func(c *v1alpha1.MarekvsCluster) bool {
		owned := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionOwned)
		return owned != nil && owned.Status == metav1.ConditionFalse && owned.Reason == v1alpha1.ReasonNameConflict &&
			strings.Contains(owned.Message, "twin-headless")
	})
	until(t, "twin", "3 nodes", healthy(3))
	after, err := services.Get(t.Context(), "twin-headless", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, before.ResourceVersion, after.ResourceVersion)
}

// A Service of the same name is not taken over. An unchanged cluster is not written.
func TestOthersAndQuiet(t *testing.T) {
	t.Parallel()
	_, err := env.kube.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "taken"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	create(t, "taken", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	until(t, "taken", "a conflict", func(c *v1alpha1.MarekvsCluster) bool {
		return meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.ConditionOwned)
	})
	service, err := env.kube.CoreV1().Services(namespace).Get(t.Context(), "taken", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, service.OwnerReferences)

	create(t, "quiet", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	before := until(t, "quiet", "3 nodes and a rate", func(c *v1alpha1.MarekvsCluster) bool { return healthy(3)(c) && c.Status.OpsPerSecond != "" })
	// The StatefulSet controller may report the Pods later than the operator.
	var set *appsv1.StatefulSet
	eventually(t, "the StatefulSet reports its Pods", func(ctx context.Context) bool {
		set, err = env.kube.AppsV1().StatefulSets(namespace).Get(ctx, "quiet", metav1.GetOptions{})
		return err == nil && set.Status.AvailableReplicas == 3
	})
	// Each sync reads the metrics of each Pod once.
	scrapes := env.store.Scrapes("quiet-0")
	eventually(t, "ten syncs are complete", func(context.Context) bool { return env.store.Scrapes("quiet-0") > scrapes+10 })
	after := until(t, "quiet", "3 nodes", healthy(3))
	assert.Equal(t, before.ResourceVersion, after.ResourceVersion)
	now, err := env.kube.AppsV1().StatefulSets(namespace).Get(t.Context(), "quiet", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, set.ResourceVersion, now.ResourceVersion)
}
