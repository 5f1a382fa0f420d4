// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/provider/kwok"
)

// A drain waits until the volumes of the evicted Pods are detached, and not for those of
// Pods that stay.
func TestAttachedVolumes(t *testing.T) {
	t.Parallel()
	const name, staying, left = "volumes", "volume-that-stays", "volume-of-an-evicted-pod"
	node := createGroup(t, steadyShard, name, 1)[0]
	env.CreateNamespace(t, name)
	createVolume(t, staying, corev1.ObjectReference{Namespace: name, Name: "data"})
	// The claim of a mirror Pod need not exist: no kubelet mounts it.
	mirror := newPod(name, "mirror", node)
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "mirror"}
	mirror.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	createPods(t, mirror)
	attach(t, staying, node)
	attach(t, left, node)

	from := env.AuditEnd(t)
	setProviderStatus(t, node, kwok.StatusImpaired)
	testcluster.Eventually(t, timeout, "the volumes are looked up", func(context.Context) error {
		for _, volume := range []string{staying, left} {
			if len(env.OperatorRequests(t, from, func(r controlplane.Request) bool {
				return r.Resource == "persistentvolumes" && r.Name == volume
			})) == 0 {
				return errors.New(volume + " is not")
			}
		}
		return nil
	})
	d, _ := env.drains[steadyShard].ofInstance(node)
	assert.Empty(t, d.Acknowledged, "a volume was attached when the drain was acknowledged")
	require.NoError(t, env.Kube.StorageV1().VolumeAttachments().Delete(t.Context(), left, metav1.DeleteOptions{}))
	untilDrained(t, node)
}

// createVolume creates a PersistentVolume that belongs to a claim.
func createVolume(t *testing.T, name string, claim corev1.ObjectReference) {
	t.Helper()
	volumes := env.Kube.CoreV1().PersistentVolumes()
	_, err := volumes.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			ClaimRef:               &claim,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, volumes.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
}

// attach attaches a volume to a Node.
func attach(t *testing.T, volume, node string) {
	t.Helper()
	attachments := env.Kube.StorageV1().VolumeAttachments()
	attachment, err := attachments.Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "none", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(volume)},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		err := attachments.Delete(context.WithoutCancel(t.Context()), volume, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	attachment.Status.Attached = true
	_, err = attachments.UpdateStatus(t.Context(), attachment, metav1.UpdateOptions{})
	require.NoError(t, err)
}
