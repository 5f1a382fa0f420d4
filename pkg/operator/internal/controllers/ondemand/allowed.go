// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// allowed is which Pods may request machines. An empty set is no restriction.
type allowed struct {
	// namespaces are the namespaces of the Pods, groups the groups that they may name.
	namespaces, groups sets.Set[string]
}

// refuse returns why a Pod may not request a machine, nil when it may.
func (a allowed) refuse(pod *metav1.PartialObjectMetadata) *rejection {
	group := pod.Annotations[v1beta1.AnnotationOnDemandGroup]
	switch {
	case a.namespaces.Len() > 0 && !a.namespaces.Has(pod.Namespace):
		return &rejection{reason: reasonNotAllowed, subject: pod.Namespace,
			message: fmt.Sprintf("the Pods of namespace %q may not request machines", pod.Namespace)}
	case a.groups.Len() > 0 && !a.groups.Has(group):
		return &rejection{reason: reasonNotAllowed, subject: group,
			message: fmt.Sprintf("Pods may not request machines of group %q", group)}
	}
	return nil
}
