// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// trim drops who wrote what, which the API server keeps and the operator never reads,
// and shares the strings that most objects of a kind have alike. The decoder makes one
// for each object.
func trim(obj any) (any, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil //nolint:nilerr // what is not an object is not trimmed
	}
	object.SetManagedFields(nil)
	shareMetadata(object)
	switch object := obj.(type) {
	case *v1beta1.NstanceMachinePool:
		shareConditions(object.Status.Conditions)
	case *v1beta1.NstanceShardGroup:
		shareConditions(object.Status.Conditions)
	case *v1beta1.NstanceMachine:
		shareConditions(object.Status.Conditions)
	}
	return obj, nil
}

func shareMetadata(object metav1.Object) {
	object.SetNamespace(shared(object.GetNamespace()))
	for key, value := range object.GetLabels() {
		object.GetLabels()[shared(key)] = shared(value)
	}
	for i, finalizer := range object.GetFinalizers() {
		object.GetFinalizers()[i] = shared(finalizer)
	}
	for i, owner := range object.GetOwnerReferences() {
		object.GetOwnerReferences()[i].APIVersion = shared(owner.APIVersion)
		object.GetOwnerReferences()[i].Kind = shared(owner.Kind)
	}
}

func shareConditions(conditions []metav1.Condition) {
	for i := range conditions {
		condition := &conditions[i]
		condition.Type = shared(condition.Type)
		condition.Status = shared(condition.Status)
		condition.Reason = shared(condition.Reason)
	}
}

// shared returns s in the memory of all equal strings.
func shared[S ~string](s S) S { return unique.Make(s).Value() }

// trimNode keeps of a Node what the controllers read. A large cluster has many
// Nodes, and each changes every few seconds.
func trimNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
			CreationTimestamp: node.CreationTimestamp, DeletionTimestamp: node.DeletionTimestamp,
		},
		Spec:   corev1.NodeSpec{ProviderID: node.Spec.ProviderID, Unschedulable: node.Spec.Unschedulable},
		Status: corev1.NodeStatus{Addresses: node.Status.Addresses},
	}
	if mark, ok := node.Annotations[v1beta1.AnnotationCordonedFor]; ok {
		kept.Annotations = map[string]string{v1beta1.AnnotationCordonedFor: mark}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			kept.Status.Conditions = []corev1.NodeCondition{{
				Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime,
			}}
		}
	}
	return kept, nil
}
