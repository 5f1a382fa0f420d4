// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"fmt"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/identifier"
)

// maxInstanceType is the length of the longest instance type that the CRD of
// NstanceMachines allows, in characters.
const maxInstanceType = 128

// request is the machine that a Pod requests.
type request struct {
	group, instanceType string
}

// requestOf reads the annotations of a Pod. In a message the rule comes before the
// value, because a long value is cut off in an event.
func requestOf(pod *metav1.PartialObjectMetadata) (request, *rejection) {
	group := pod.Annotations[v1beta1.AnnotationOnDemandGroup]
	if err := identifier.Validate(group); err != nil {
		return request{}, invalidAnnotation(v1beta1.AnnotationOnDemandGroup,
			"the id of a group: lower case letters, digits and single hyphens, at most 32 characters", group)
	}
	instanceType, given := pod.Annotations[v1beta1.AnnotationOnDemandInstanceType]
	if given && (instanceType == "" || utf8.RuneCountInString(instanceType) > maxInstanceType) {
		return request{}, invalidAnnotation(v1beta1.AnnotationOnDemandInstanceType,
			fmt.Sprintf("an instance type: 1 to %d characters", maxInstanceType), instanceType)
	}
	return request{group, instanceType}, nil
}

func invalidAnnotation(name, allowed, value string) *rejection {
	return &rejection{reasonInvalidAnnotation, name + "=" + value, fmt.Sprintf("annotation %s must be %s; it is %q", name, allowed, value)}
}

func unknownGroup(group string, others []string) *rejection {
	existing := "there are no groups"
	if len(others) > 0 {
		existing = "there are: " + strings.Join(others, ", ")
	}
	return &rejection{reasonUnknownGroup, group,
		fmt.Sprintf("annotation %s: no shard has a group %q; %s", v1beta1.AnnotationOnDemandGroup, group, existing)}
}

func limitReached(of slot, limit int) *rejection {
	return &rejection{reasonLimit, of.String(),
		fmt.Sprintf("the Pods of namespace %q have as many on-demand machines of group %q as the limit allows: %d", of.namespace, of.group, limit)}
}

func nameTaken(uid types.UID) *rejection {
	return &rejection{reasonNameTaken, machineName(uid),
		fmt.Sprintf("a Machine or NstanceMachine %q exists already, and is not the machine of this Pod", machineName(uid))}
}
