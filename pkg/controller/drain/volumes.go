// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/controller"
)

// byNode finds VolumeAttachments by their Node.
const byNode = "node"

var volumeIndexers = cache.Indexers{byNode: func(obj any) ([]string, error) {
	if attachment, ok := obj.(*storagev1.VolumeAttachment); ok {
		return []string{attachment.Spec.NodeName}, nil
	}
	return nil, nil
}}

// TrimVolumeAttachment is the transform of an informer of VolumeAttachments for
// this controller: it keeps which volume is attached to which Node.
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

// attached is how many volumes are attached to a Node for other Pods than those
// that stay there. A volume of which that cannot be told counts.
func (c *Controller) attached(ctx context.Context, node string, staying []*corev1.Pod) (int, error) {
	attachments := controller.Indexed[storagev1.VolumeAttachment](c.volumes, byNode, node)
	if len(attachments) == 0 {
		return 0, nil
	}
	kept := claimsOf(staying)
	count := 0
	for _, attachment := range attachments {
		used, err := c.usedBy(ctx, attachment, kept)
		if err != nil {
			return 0, err
		}
		if !used {
			count++
		}
	}
	return count, nil
}

// usedBy tells whether what is attached is the volume of one of claims.
func (c *Controller) usedBy(ctx context.Context, attachment *storagev1.VolumeAttachment, claims sets.Set[cache.ObjectName]) (bool, error) {
	name := attachment.Spec.Source.PersistentVolumeName
	if name == nil || len(claims) == 0 {
		return false, nil
	}
	volume, err := c.client.CoreV1().PersistentVolumes().Get(ctx, *name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get PersistentVolume %s: %w", *name, err)
	}
	claim := volume.Spec.ClaimRef
	return claim != nil && claims.Has(cache.NewObjectName(claim.Namespace, claim.Name)), nil
}

// claimsOf are the claims whose volumes pods use. That of an ephemeral volume is
// named after its Pod.
func claimsOf(pods []*corev1.Pod) sets.Set[cache.ObjectName] {
	claims := sets.New[cache.ObjectName]()
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
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
