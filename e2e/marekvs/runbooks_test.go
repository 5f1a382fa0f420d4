// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/marekvsstore"
	"nstance.dev/operator/e2e/runbook"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// tools are the programs of an administrator.
func tools(t *testing.T) runbook.Tools {
	t.Helper()
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	return runbook.Tools{
		Root: root, Kubeconfig: env.controlPlane.KubeconfigPath(), Programs: map[string]string{"kubectl": env.binaries.Kube},
	}
}

// volumes returns the UID of the claim of each node of a cluster.
func volumes(t *testing.T, cluster string, nodes int) map[string]types.UID {
	t.Helper()
	uids := map[string]types.UID{}
	for ordinal := range nodes {
		claim, err := env.kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), fmt.Sprintf("data-%s-%d", cluster, ordinal), metav1.GetOptions{})
		require.NoError(t, err)
		uids[claim.Name] = claim.UID
	}
	return uids
}

// runHalted waits until the update of a cluster has halted.
func runHalted(t *testing.T, name string) {
	t.Helper()
	until(t, name, "halted", func(c *v1alpha1.MarekvsCluster) bool {
		rolled := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionRolledOut)
		return rolled != nil && rolled.Reason == v1alpha1.ReasonRolloutHalted
	})
}

// A Pod whose Node does not respond ends when the Node is deleted, and starts elsewhere with its volume.
func TestANodeThatIsLost(t *testing.T) {
	t.Parallel()
	const node = "lost-machine"
	_, err := env.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	require.NoError(t, err)
	env.store.Place("away-1", node)
	create(t, "away", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	until(t, "away", "3 nodes", healthy(3))
	env.store.Fill("away")
	claims, before := volumes(t, "away", 3), podUID(t.Context(), "away-1")
	require.NoError(t, env.store.LoseNode(t.Context(), node))
	until(t, "away", "a node is not ready", func(c *v1alpha1.MarekvsCluster) bool { return ptr.Deref(c.Status.ReadyNodes, 0) == 2 })
	env.store.Place("away-1", marekvsstore.NodeName)
	p := runbook.StartProcedure(t, "A node of marekvs that is lost", tools(t), map[string]string{"NAMESPACE": namespace, "NAME": "away", "NODE": node})
	p.Run("Look at the Node")
	p.Do("Make sure that the machine is off", func() {})
	p.Run("Delete the Node")
	p.Run("Wait until the cluster has all nodes again")
	until(t, "away", "3 nodes", healthy(3))
	assert.NotEqual(t, before, podUID(t.Context(), "away-1"))
	assert.Equal(t, claims, volumes(t, "away", 3))
	assert.GreaterOrEqual(t, env.store.FewestCopies("away"), 1)
}

// A node is replaced on request, and gets every copy back.
func TestAVolumeThatIsReplacedOnRequest(t *testing.T) {
	t.Parallel()
	create(t, "replaced", v1alpha1.MarekvsClusterSpec{Nodes: 4, ReplicationFactor: 2})
	until(t, "replaced", "4 nodes", healthy(4))
	env.store.Fill("replaced")
	before := volumes(t, "replaced", 4)
	p := runbook.StartProcedure(t, "A volume of marekvs that is lost", tools(t), map[string]string{"NAMESPACE": namespace, "NAME": "replaced", "ORDINAL": "2"})
	p.Run("Look at what is known")
	p.Run("Ask for the replacement")
	p.Run("Wait until the claim is another one")
	until(t, "replaced", "4 nodes", healthy(4))
	after := volumes(t, "replaced", 4)
	assert.NotEqual(t, before["data-replaced-2"], after["data-replaced-2"])
	delete(before, "data-replaced-2")
	delete(after, "data-replaced-2")
	assert.Equal(t, before, after)
	assert.Equal(t, 1, env.store.FewestCopies("replaced"), "copies of a partition while the node was away")
	eventually(t, "every partition has its copies again", func(context.Context) bool { return env.store.Copies("replaced") == 2 })
}

// A volume that only a Node can use that no longer exists is replaced after the time of the spec.
func TestAVolumeThatIsLostIsReplacedAfterItsDeadline(t *testing.T) {
	t.Parallel()
	createClass(t, "local", false)
	create(t, "local", v1alpha1.MarekvsClusterSpec{
		Nodes: 3, ReplicationFactor: 2, Storage: v1alpha1.Storage{Size: ptr.To(resource.MustParse("1Gi")), ClassName: "local", ReplaceLostAfterSeconds: 3},
	})
	until(t, "local", "3 nodes", healthy(3))
	bindVolumes(t, "local", "removed-machine")
	env.store.Fill("local")
	before := volumes(t, "local", 3)
	require.NoError(t, env.store.LoseVolume(t.Context(), "local-1"))
	lost := until(t, "local", "the volume is lost", func(c *v1alpha1.MarekvsCluster) bool {
		return meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.ConditionVolumesAvailable)
	})
	assert.Contains(t, meta.FindStatusCondition(lost.Status.Conditions, v1alpha1.ConditionVolumesAvailable).Message, "Kubernetes Node removed-machine, which does not exist")
	eventually(t, "another claim", func(ctx context.Context) bool {
		claim, err := env.kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, "data-local-1", metav1.GetOptions{})
		return err == nil && claim.UID != before["data-local-1"]
	})
	until(t, "local", "3 nodes", healthy(3))
	after := volumes(t, "local", 3)
	assert.Equal(t, before["data-local-0"], after["data-local-0"])
	assert.Equal(t, before["data-local-2"], after["data-local-2"])
	eventually(t, "every partition has its copies again", func(context.Context) bool { return env.store.Copies("local") == 2 })
}

// The volume with the only copy of data gets another claim, and the update, which waited, is finished.
func TestAVolumeClaimThatWasDeleted(t *testing.T) {
	t.Parallel()
	createClass(t, "kept", false)
	create(t, "kept", v1alpha1.MarekvsClusterSpec{
		Nodes: 3, ReplicationFactor: 1, Storage: v1alpha1.Storage{Size: ptr.To(resource.MustParse("1Gi")), ClassName: "kept"},
	})
	until(t, "kept", "3 nodes", healthy(3))
	bindVolumes(t, "kept")
	env.store.Fill("kept")
	before, pod := volumes(t, "kept", 3), podUID(t.Context(), "kept-2")
	claims := env.kube.CoreV1().PersistentVolumeClaims(namespace)
	require.NoError(t, claims.Delete(t.Context(), "data-kept-2", metav1.DeleteOptions{}))
	patch(t, "kept", `{"spec": {"image": "marekvs:2"}}`)
	until(t, "kept", "the update waits", func(c *v1alpha1.MarekvsCluster) bool {
		available := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionVolumesAvailable)
		return c.Status.Phase == v1alpha1.PhaseBlocked && available != nil && available.Reason == v1alpha1.ReasonSingleCopy
	})
	eventually(t, "no Pod may be evicted", func(ctx context.Context) bool {
		budget, err := env.kube.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "kept", metav1.GetOptions{})
		return err == nil && budget.Status.ObservedGeneration == budget.Generation && budget.Spec.MaxUnavailable.IntValue() == 0
	})
	err := env.kube.PolicyV1().Evictions(namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kept-2"}})
	assert.True(t, apierrors.IsTooManyRequests(err), "the eviction: %v", err)
	require.Equal(t, pod, podUID(t.Context(), "kept-2"))
	p := runbook.StartProcedure(t, "A volume claim of marekvs that was deleted", tools(t), map[string]string{"NAMESPACE": namespace, "NAME": "kept", "ORDINAL": "2"})
	p.Run("Stop the operator")
	p.Run("Keep the volume")
	p.Run("Delete the StatefulSet")
	p.Run("Let the next claim")
	p.Run("Let the operator go on")
	p.Run("Give the volume its policy back")
	until(t, "kept", "3 nodes", healthy(3))
	after := volumes(t, "kept", 3)
	assert.NotEqual(t, before["data-kept-2"], after["data-kept-2"])
	assert.Equal(t, before["data-kept-0"], after["data-kept-0"])
	assert.Equal(t, map[string]string{"kept-0": "marekvs:2", "kept-1": "marekvs:2", "kept-2": "marekvs:2"}, podImages(t, "kept"))
	eventually(t, "the only copies are there", func(context.Context) bool { return env.store.Copies("kept") == 1 })
}

func TestAVolumeThatIsFull(t *testing.T) {
	t.Parallel()
	createClass(t, "roomy", true)
	create(t, "filled", v1alpha1.MarekvsClusterSpec{
		Nodes: 3, ReplicationFactor: 2, Storage: v1alpha1.Storage{Size: ptr.To(resource.MustParse("1Gi")), ClassName: "roomy"},
	})
	until(t, "filled", "3 nodes", healthy(3))
	bindVolumes(t, "filled")
	before := podUID(t.Context(), "filled-0")
	p := runbook.StartProcedure(t, "A volume of marekvs that is full", tools(t), map[string]string{"NAMESPACE": namespace, "NAME": "filled", "SIZE": "3Gi"})
	p.Run("Make sure that the StorageClass")
	p.Run("Raise the size")
	for name := range volumes(t, "filled", 3) { // the storage driver
		eventually(t, name+" requests more", func(ctx context.Context) bool {
			claim, err := env.kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
			return err == nil && claim.Spec.Resources.Requests.Storage().String() == "3Gi"
		})
		_, err := env.kube.CoreV1().PersistentVolumeClaims(namespace).Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"status": {"capacity": {"storage": "3Gi"}}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	p.Run("Wait until every volume has it")
	until(t, "filled", "3 nodes", healthy(3))
	assert.Equal(t, before, podUID(t.Context(), "filled-0"))
}

func TestAnUpdateThatHasStopped(t *testing.T) {
	t.Parallel()
	create(t, "stopped", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	until(t, "stopped", "3 nodes", healthy(3))
	env.store.Fail("marekvs:mistyped")
	patch(t, "stopped", `{"spec": {"image": "marekvs:mistyped"}}`)
	runHalted(t, "stopped")
	claims := volumes(t, "stopped", 3)
	p := runbook.StartProcedure(t, "An update of marekvs that has stopped", tools(t), map[string]string{"NAMESPACE": namespace, "NAME": "stopped", "IMAGE": "marekvs:2"})
	p.Run("Look at why")
	p.Run("Correct the spec")
	p.Run("Wait until every Pod has it")
	assert.Equal(t, map[string]string{"stopped-0": "marekvs:2", "stopped-1": "marekvs:2", "stopped-2": "marekvs:2"}, podImages(t, "stopped"))
	assert.Equal(t, claims, volumes(t, "stopped", 3))
}

func TestAnotherNumberOfCopies(t *testing.T) {
	t.Parallel()
	create(t, "copied", v1alpha1.MarekvsClusterSpec{Nodes: 3, ReplicationFactor: 2})
	until(t, "copied", "3 nodes", healthy(3))
	env.store.Fill("copied")
	claims := volumes(t, "copied", 3)
	p := runbook.StartProcedure(t, "Another number of copies", tools(t), map[string]string{"NAMESPACE": namespace, "NAME": "copied", "COPIES": "3"})
	p.Do("Make sure that the volumes have room", func() {})
	p.Run("Change the number")
	p.Run("Wait until every Pod has it")
	until(t, "copied", "4 nodes", healthy(4))
	assert.Equal(t, claims, volumes(t, "copied", 3))
	eventually(t, "every partition has 3 copies", func(context.Context) bool { return env.store.Copies("copied") >= 3 })
}

// A cluster that was deleted begins with its claims, and its data is there.
func TestRestore(t *testing.T) {
	t.Parallel()
	create(t, "restored", v1alpha1.MarekvsClusterSpec{Nodes: 5, ReplicationFactor: 2})
	until(t, "restored", "5 nodes", healthy(5))
	env.store.Fill("restored")
	claims := volumes(t, "restored", 5)
	require.NoError(t, env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).Delete(t.Context(), "restored", metav1.DeleteOptions{}))
	p := runbook.StartProcedure(t, "Restore a cluster of marekvs", tools(t), map[string]string{"NAMESPACE": namespace, "NAME": "restored", "MANIFEST": "restored.yaml"})
	p.Run("Make sure that every claim is there")
	p.Do("Write the manifest", func() {
		manifest := `{"apiVersion": "marekvs.io/v1alpha1", "kind": "MarekvsCluster", "metadata": {"name": "restored"}, "spec": {"image": "marekvs:1", "nodes": 5}}`
		require.NoError(t, os.WriteFile(filepath.Join(p.Dir(), "restored.yaml"), []byte(manifest), 0o600))
	})
	p.Run("Create the cluster")
	until(t, "restored", "5 nodes", healthy(5))
	assert.Equal(t, claims, volumes(t, "restored", 5))
	assert.Equal(t, 2, env.store.Copies("restored"), "copies of a partition")
}
