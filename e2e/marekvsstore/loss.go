// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvsstore

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Place chooses the Node of a Pod that is created from now on.
func (s *Store) Place(pod, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places[pod] = node
}

// LoseNode ends a Node: its processes end, and its kubelet does nothing any more. Its Pods become not ready, as
// the node controller does after some time.
func (s *Store) LoseNode(ctx context.Context, node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead[node] = true
	list, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("list the Pods of Node %s: %w", node, err)
	}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Spec.NodeName == node {
			if err := s.patchStatus(ctx, pod.Name, map[string]any{"conditions": []any{map[string]any{
				"type": corev1.PodReady, "status": "False", "lastTransitionTime": metav1.Now(),
			}}}); err != nil {
				return fmt.Errorf("make Pod %s not ready: %w", pod.Name, err)
			}
		}
	}
	return nil
}

// LoseVolume loses the volume of a Pod: its data is gone, and no Node accepts a Pod with its claim. It deletes the
// Pod.
func (s *Store) LoseVolume(ctx context.Context, pod string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, claimOf(pod), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the claim of Pod %s: %w", pod, err)
	}
	s.lost[claim.UID] = true
	grace := int64(0)
	if err := s.Kube.CoreV1().Pods(s.Namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		return fmt.Errorf("delete Pod %s: %w", pod, err)
	}
	return nil
}
