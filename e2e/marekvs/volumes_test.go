// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// createClass creates a StorageClass, for which bindVolumes acts as the driver.
func createClass(t *testing.T, name string, expandable bool) {
	t.Helper()
	classes := env.kube.StorageV1().StorageClasses()
	_, err := classes.Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/none", AllowVolumeExpansion: ptr.To(expandable),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = classes.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}) })
}

// bindVolumes gives each claim of a cluster a volume, which only some Nodes can use if they are given.
func bindVolumes(t *testing.T, cluster string, hosts ...string) {
	t.Helper()
	list, err := env.kube.CoreV1().PersistentVolumeClaims(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + cluster})
	require.NoError(t, err)
	volumes := env.kube.CoreV1().PersistentVolumes()
	for i := range list.Items {
		claim := &list.Items[i]
		name := "test-" + string(claim.UID)
		var affinity *corev1.VolumeNodeAffinity
		if len(hosts) > 0 {
			affinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts}},
			}}}}
		}
		_, err := volumes.Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				NodeAffinity: affinity,
				AccessModes:  claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests, StorageClassName: *claim.Spec.StorageClassName,
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: claim.Name, UID: claim.UID},
				PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { _ = volumes.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}) })
		eventually(t, claim.Name+" has a volume", func(ctx context.Context) bool {
			bound, err := env.kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim.Name, metav1.GetOptions{})
			return err == nil && bound.Status.Phase == corev1.ClaimBound
		})
	}
}

// The claims of a cluster grow, and the StatefulSet controller adopts the Pods for a StatefulSet with larger
// claims. No Pod is restarted.
func TestVolumesGrow(t *testing.T) {
	t.Parallel()
	createClass(t, "expandable", true)
	create(t, "growing", v1alpha1.MarekvsClusterSpec{
		Nodes: 3, ReplicationFactor: 2, Storage: v1alpha1.Storage{Size: ptr.To(resource.MustParse("1Gi")), ClassName: "expandable"},
	})
	until(t, "growing", "3 nodes", healthy(3))
	bindVolumes(t, "growing")
	sets := env.kube.AppsV1().StatefulSets(namespace)
	before, err := sets.Get(t.Context(), "growing", metav1.GetOptions{})
	require.NoError(t, err)
	pods := map[string]types.UID{}
	for _, name := range []string{"growing-0", "growing-1", "growing-2"} {
		pods[name] = podUID(t.Context(), name)
	}
	patch(t, "growing", `{"spec": {"storage": {"size": "2Gi"}}}`)
	claims := env.kube.CoreV1().PersistentVolumeClaims(namespace)
	for name := range pods {
		eventually(t, name+" requests more", func(ctx context.Context) bool {
			claim, err := claims.Get(ctx, "data-"+name, metav1.GetOptions{})
			return err == nil && claim.Spec.Resources.Requests.Storage().String() == "2Gi"
		})
		_, err := claims.Patch(t.Context(), "data-"+name, types.MergePatchType, []byte(`{"status": {"capacity": {"storage": "2Gi"}}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	cluster := until(t, "growing", "larger volumes", func(c *v1alpha1.MarekvsCluster) bool {
		return healthy(3)(c) && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionVolumesExpanded)
	})
	assert.Equal(t, int32(3), cluster.Status.Replicas)
	after, err := sets.Get(t.Context(), "growing", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, before.UID, after.UID)
	assert.Equal(t, before.Annotations, after.Annotations)
	assert.Equal(t, "2Gi", after.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String())
	assert.Equal(t, before.Status.UpdateRevision, after.Status.UpdateRevision)
	for name, uid := range pods {
		assert.Equal(t, uid, podUID(t.Context(), name), name)
		pod, err := env.kube.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.True(t, metav1.IsControlledBy(pod, after), name)
	}
}

// Volumes whose StorageClass does not allow it do not grow, and the condition names claim and class.
func TestVolumesThatCannotGrow(t *testing.T) {
	t.Parallel()
	createClass(t, "fixed-size", false)
	create(t, "full", v1alpha1.MarekvsClusterSpec{
		Nodes: 3, ReplicationFactor: 2, Storage: v1alpha1.Storage{Size: ptr.To(resource.MustParse("1Gi")), ClassName: "fixed-size"},
	})
	until(t, "full", "3 nodes", healthy(3))
	bindVolumes(t, "full")
	patch(t, "full", `{"spec": {"storage": {"size": "2Gi"}}}`)
	cluster := until(t, "full", "blocked", func(c *v1alpha1.MarekvsCluster) bool { return c.Status.Phase == v1alpha1.PhaseBlocked })
	condition := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ConditionVolumesExpanded)
	require.NotNil(t, condition)
	assert.Equal(t, v1alpha1.ReasonExpansionNotAllowed, condition.Reason)
	assert.Equal(t, "volume claim data-full-0 cannot grow from 1Gi to 2Gi: allowVolumeExpansion of its StorageClass fixed-size is not true.", condition.Message)
}

// A size that was typed too large is lowered before the volumes have grown. The API server lowers the requests of claims
// only to more than the volumes have, and the size of the cluster not below what they have.
func TestASizeThatWasTooLargeIsLowered(t *testing.T) {
	t.Parallel()
	createClass(t, "slow", true)
	create(t, "mistyped", v1alpha1.MarekvsClusterSpec{
		Nodes: 3, ReplicationFactor: 2, Storage: v1alpha1.Storage{Size: ptr.To(resource.MustParse("1Gi")), ClassName: "slow"},
	})
	until(t, "mistyped", "3 nodes", healthy(3))
	bindVolumes(t, "mistyped")
	claims := env.kube.CoreV1().PersistentVolumeClaims(namespace)
	untilRequested := func(size string) {
		t.Helper()
		for name := range volumes(t, "mistyped", 3) {
			eventually(t, name+" requests "+size, func(ctx context.Context) bool {
				claim, err := claims.Get(ctx, name, metav1.GetOptions{})
				return err == nil && claim.Spec.Resources.Requests.Storage().String() == size
			})
		}
	}
	until(t, "mistyped", "the controller has seen the volumes: a size below theirs is rejected", func(*v1alpha1.MarekvsCluster) bool {
		return apierrors.IsInvalid(tryChange(t, "mistyped", "spec.storage.size", "512Mi"))
	})
	patch(t, "mistyped", `{"spec": {"storage": {"size": "1Ti"}}}`)
	untilRequested("1Ti")
	until(t, "mistyped", "it can be reduced", func(c *v1alpha1.MarekvsCluster) bool {
		return c.Status.StorageReducibleTo != nil && c.Status.StorageReducibleTo.String() == "1Gi"
	})
	expectRejected(t, tryChange(t, "mistyped", "spec.storage.size", "1023Mi"), "spec.storage.size", "size cannot be reduced")
	patch(t, "mistyped", `{"spec": {"storage": {"size": "2Gi"}}}`)
	untilRequested("2Gi")
	patch(t, "mistyped", `{"spec": {"storage": {"size": "1Gi"}}}`)
	untilRequested("1073741825")
	for name := range volumes(t, "mistyped", 3) { // the storage driver
		_, err := claims.Patch(t.Context(), name, types.MergePatchType, []byte(`{"status": {"capacity": {"storage": "1073741825"}}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	until(t, "mistyped", "nothing grows", func(c *v1alpha1.MarekvsCluster) bool {
		return healthy(3)(c) && c.Status.StorageReducibleTo == nil && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionVolumesExpanded)
	})
	set, err := env.kube.AppsV1().StatefulSets(namespace).Get(t.Context(), "mistyped", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "1Gi", set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String())
}
