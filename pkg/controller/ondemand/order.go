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

// maxInstanceType is the longest instance type that the definition of
// NstanceMachines allows, in characters.
const maxInstanceType = 128

// order is the machine that a Pod asks for.
type order struct {
	group, instanceType string
}

// orderOf reads the annotations of a Pod. They are the words of users, and long
// ones are cut off in an event: the rule comes before the value.
func orderOf(pod *metav1.PartialObjectMetadata) (order, *complaint) {
	group := pod.Annotations[v1beta1.AnnotationOnDemandGroup]
	if err := identifier.Validate(group); err != nil {
		return order{}, invalidAnnotation(v1beta1.AnnotationOnDemandGroup,
			"the id of a group: lower case letters, digits and single hyphens, at most 32 characters", group)
	}
	instanceType, given := pod.Annotations[v1beta1.AnnotationOnDemandInstanceType]
	if given && (instanceType == "" || utf8.RuneCountInString(instanceType) > maxInstanceType) {
		return order{}, invalidAnnotation(v1beta1.AnnotationOnDemandInstanceType,
			fmt.Sprintf("an instance type: 1 to %d characters", maxInstanceType), instanceType)
	}
	return order{group, instanceType}, nil
}

func invalidAnnotation(name, allowed, value string) *complaint {
	return &complaint{reasonInvalidAnnotation, name + "=" + value, fmt.Sprintf("annotation %s must be %s; it is %q", name, allowed, value)}
}

func unknownGroup(group string, others []string) *complaint {
	there := "there is none"
	if len(others) > 0 {
		there = "there are: " + strings.Join(others, ", ")
	}
	return &complaint{reasonUnknownGroup, group,
		fmt.Sprintf("annotation %s: no shard has a group %q; %s", v1beta1.AnnotationOnDemandGroup, group, there)}
}

func limitReached(of slot, limit int) *complaint {
	return &complaint{reasonLimit, of.String(),
		fmt.Sprintf("the Pods of namespace %q have as many on-demand machines of group %q as they may: %d", of.namespace, of.group, limit)}
}

func nameTaken(uid types.UID) *complaint {
	return &complaint{reasonNameTaken, machineName(uid),
		fmt.Sprintf("a Machine or NstanceMachine %q is there already, and is not the machine of this Pod", machineName(uid))}
}
