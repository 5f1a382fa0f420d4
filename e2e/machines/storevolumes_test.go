// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// createStoreClass creates the StorageClass of the store, whose volumes are created by hand and can grow.
func createStoreClass(t *testing.T) {
	t.Helper()
	classes := env.Kube.StorageV1().StorageClasses()
	_, err := classes.Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: storeName}, Provisioner: "kubernetes.io/no-provisioner", AllowVolumeExpansion: ptr.To(true),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, classes.Delete(context.WithoutCancel(t.Context()), storeName, metav1.DeleteOptions{}))
	})
}

// anyMachine selects all Nodes of the store: its volume is a folder that all of them share, as the volumes of a network
// are. onMachine selects one Node, as local volumes do.
func anyMachine() corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: v1beta1.LabelGroup, Operator: corev1.NodeSelectorOpIn, Values: []string{storeName}}
}

func onMachine(node *corev1.Node) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Labels[corev1.LabelHostname]}}
}

// createStoreVolume creates a volume for the next claim of the store that has none.
func createStoreVolume(t *testing.T, name, size string, where corev1.NodeSelectorRequirement) {
	t.Helper()
	client, path := env.Kube.CoreV1().PersistentVolumes(), filepath.Join(volumes, name)
	require.NoError(t, os.Mkdir(path, 0o700))
	_, err := client.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			StorageClassName:              storeName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{where},
			}}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, client.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
}

// storeClaims returns the UID of each volume claim of the store.
func storeClaims(ctx context.Context) (map[string]types.UID, error) {
	list, err := env.Kube.CoreV1().PersistentVolumeClaims(storeName).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	uids := map[string]types.UID{}
	for i := range list.Items {
		uids[list.Items[i].Name] = list.Items[i].UID
	}
	return uids, nil
}

// untilStoreVolumesGrow raises the sizes of the volumes to the requests of their claims, which the controller of
// a storage driver does, and waits until every claim has so much. The kubelets of the Pods see the larger volumes, let
// the volume plugin grow the file systems, and write the sizes into the claims.
func untilStoreVolumesGrow(t *testing.T, size string) {
	t.Helper()
	want := resource.MustParse(size)
	testcluster.Eventually(t, storeTimeout, "every volume has "+size, func(ctx context.Context) error {
		list, err := env.Kube.CoreV1().PersistentVolumeClaims(storeName).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			claim := &list.Items[i]
			request, capacity := claim.Spec.Resources.Requests.Storage(), claim.Status.Capacity.Storage()
			if request.Cmp(want) < 0 {
				return fmt.Errorf("claim %s requests %s", claim.Name, request)
			}
			if capacity.Cmp(want) >= 0 {
				continue
			}
			patch := fmt.Appendf(nil, `{"spec":{"capacity":{"storage":%q}}}`, request)
			if _, err := env.Kube.CoreV1().PersistentVolumes().Patch(ctx, claim.Spec.VolumeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				return err
			}
			return fmt.Errorf("claim %s has %s", claim.Name, capacity)
		}
		return nil
	})
}
