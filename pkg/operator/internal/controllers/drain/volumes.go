// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/controller"
)

// TrimVolumeAttachment is the transform of an informer of VolumeAttachments: it
// keeps the fields that drains read.
func TrimVolumeAttachment(obj any) (any, error) {
	attachment, ok := obj.(*storagev1.VolumeAttachment)
	if !ok {
		return obj, nil
	}
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachment.Name, UID: attachment.UID, ResourceVersion: attachment.ResourceVersion},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: attachment.Spec.NodeName,
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: attachment.Spec.Source.PersistentVolumeName},
		},
	}, nil
}

// errVolumesUnknown is the error of a drain before the cache of VolumeAttachments is
// complete. The operator may start without the API server of the Nodes.
var errVolumesUnknown = errors.New("the VolumeAttachments of the cluster of the Nodes have not been read yet")

// attachedVolumes returns the number of volumes that are attached to a Node and not
// used by the Pods that stay there. A volume whose user is unknown counts.
func (c *Controller) attachedVolumes(ctx context.Context, node string, staying []*corev1.Pod) (int, error) {
	if !c.volumesSynced() {
		return 0, errVolumesUnknown
	}
	attachments := controller.Indexed[storagev1.VolumeAttachment](c.volumes, byNode, node)
	if len(attachments) == 0 {
		return 0, nil
	}
	claims := claimsOf(staying)
	count := 0
	for _, attachment := range attachments {
		used, err := c.isUsedBy(ctx, attachment, claims)
		if err != nil {
			return 0, err
		}
		if !used {
			count++
		}
	}
	return count, nil
}

// isUsedBy reports whether an attached volume belongs to any of claims.
func (c *Controller) isUsedBy(ctx context.Context, attachment *storagev1.VolumeAttachment, claims sets.Set[cache.ObjectName]) (bool, error) {
	name := attachment.Spec.Source.PersistentVolumeName
	if name == nil || len(claims) == 0 {
		return false, nil
	}
	volume, err := c.getPersistentVolume(ctx, *name)
	if err != nil || volume == nil {
		return false, err
	}
	claim := volume.Spec.ClaimRef
	return claim != nil && claims.Has(cache.NewObjectName(claim.Namespace, claim.Name)), nil
}

// claimsOf returns the PersistentVolumeClaims that running Pods use. The claim of a generic
// ephemeral volume is named after Pod and volume
// (https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#persistentvolumeclaim-naming).
func claimsOf(pods []*corev1.Pod) sets.Set[cache.ObjectName] {
	claims := sets.New[cache.ObjectName]()
	for _, pod := range pods {
		if finished(pod) {
			continue
		}
		for _, volume := range pod.Spec.Volumes {
			switch {
			case volume.PersistentVolumeClaim != nil:
				claims.Insert(cache.NewObjectName(pod.Namespace, volume.PersistentVolumeClaim.ClaimName))
			case volume.Ephemeral != nil:
				claims.Insert(cache.NewObjectName(pod.Namespace, pod.Name+"-"+volume.Name))
			}
		}
	}
	return claims
}

// getPersistentVolume returns a PersistentVolume, nil if it does not exist.
func (c *Controller) getPersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	volume, err := c.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get PersistentVolume %s: %w", name, err)
	}
	return volume, nil
}
