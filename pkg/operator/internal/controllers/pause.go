// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// PausedBy returns what pauses the work on objects: the Cluster, by spec.paused,
// or one of them, by the annotation cluster.x-k8s.io/paused with any value
// (docs/capi.md#pause). It is empty when nothing does. There may be no cluster.
func PausedBy(cluster *clusterv1.Cluster, objects ...metav1.Object) string {
	if cluster != nil && cluster.Spec.Paused != nil && *cluster.Spec.Paused {
		return fmt.Sprintf("Cluster %s has spec.paused", cluster.Name)
	}
	for _, object := range objects {
		if _, paused := object.GetAnnotations()[clusterv1.PausedAnnotation]; paused {
			return fmt.Sprintf("%s has the annotation %s", object.GetName(), clusterv1.PausedAnnotation)
		}
	}
	return ""
}

// PauseChanged reports whether exactly one of two states of an object is paused by its
// annotation.
func PauseChanged(before, after metav1.Object) bool {
	return PausedBy(nil, before) != PausedBy(nil, after)
}
