// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvsstore

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// createVolumes creates a volume for each claim that has none. Every Node can use it.
func (s *Store) createVolumes(ctx context.Context) {
	list, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return
	}
	for i := range list.Items {
		claim := &list.Items[i]
		if claim.Spec.VolumeName != "" {
			continue
		}
		_, _ = s.Kube.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "marekvs-" + string(claim.UID)},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
				ClaimRef: &corev1.ObjectReference{
					APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
				},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
			},
		}, metav1.CreateOptions{})
	}
}

// DeleteVolumes deletes every volume of the store, whose claims must be deleted.
func (s *Store) DeleteVolumes(ctx context.Context) error {
	list, err := s.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if claim := list.Items[i].Spec.ClaimRef; claim == nil || claim.Namespace != s.Namespace {
			continue
		}
		if err := s.Kube.CoreV1().PersistentVolumes().Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}
