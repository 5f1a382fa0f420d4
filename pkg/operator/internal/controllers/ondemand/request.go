// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier"
)

// maxInstanceType is the length of the longest instance type that the CRD of
// NstanceMachines allows, in characters.
const maxInstanceType = 128

// MaxDrainTimeout is the longest limit of a drain.
const MaxDrainTimeout = 365 * 24 * time.Hour

// request is the machine that a Pod requests.
type request struct {
	group, instanceType string
}

// requestOf reads the annotations of a Pod. In a message the rule comes before the
// value, because a long value is cut off in an event.
func requestOf(pod *metav1.PartialObjectMetadata) (request, *rejection) {
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && excluded(controller) {
		return request{}, invalidController(controller)
	}
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
	if _, _, invalid := annotatedDrainTimeout(pod); invalid != nil {
		return request{}, invalid
	}
	return request{group, instanceType}, nil
}

// annotatedDrainTimeout returns the drain timeout that a Pod has as an annotation.
func annotatedDrainTimeout(pod *metav1.PartialObjectMetadata) (timeout time.Duration, given bool, invalid *rejection) {
	value, given := pod.Annotations[v1beta1.AnnotationOnDemandDrainTimeout]
	if !given {
		return 0, false, nil
	}
	timeout, err := time.ParseDuration(value)
	if err != nil || timeout < 0 || timeout > MaxDrainTimeout {
		return 0, false, invalidAnnotation(v1beta1.AnnotationOnDemandDrainTimeout,
			fmt.Sprintf("a duration, such as 90s or 1h30m, of 0s to %s", MaxDrainTimeout), value)
	}
	return timeout, true, nil
}

// kindDaemonSet and kindNode are the kinds of controllers whose Pods get no machine.
const (
	kindDaemonSet = "DaemonSet"
	kindNode      = "Node"
)

// excluded reports whether the Pods of a controller get no machine. A DaemonSet, of
// whichever API group, has a Pod for each Node: a machine for it would get another Pod,
// and so on without end. A static Pod runs on the Node that controls it.
func excluded(controller *metav1.OwnerReference) bool {
	return controller.Kind == kindDaemonSet || controller.Kind == kindNode
}

func invalidController(controller *metav1.OwnerReference) *rejection {
	message := fmt.Sprintf("a Pod of DaemonSet %q gets no machine, because each new machine would get another Pod", controller.Name)
	if controller.Kind == kindNode {
		message = fmt.Sprintf("a static Pod of Node %q gets no machine, because it runs on that Node", controller.Name)
	}
	return &rejection{reason: reasonInvalidAnnotation, subject: controller.Kind + "/" + controller.Name,
		message: fmt.Sprintf("annotation %s: %s", v1beta1.AnnotationOnDemandGroup, message)}
}

func alreadyBound() *rejection {
	return &rejection{reason: reasonAlreadyBound, message: "the Pod is bound to a Node already, and gets no other machine"}
}

func invalidAnnotation(name, allowed, value string) *rejection {
	return &rejection{reason: reasonInvalidAnnotation, subject: name + "=" + value,
		message: fmt.Sprintf("annotation %s must be %s; it is %q", name, allowed, value)}
}

func unknownGroup(group string, others []string) *rejection {
	existing := "there are no groups"
	if len(others) > 0 {
		existing = "there are: " + strings.Join(others, ", ")
	}
	return &rejection{reason: reasonUnknownGroup, subject: group,
		message: fmt.Sprintf("annotation %s: no shard has a group %q; %s", v1beta1.AnnotationOnDemandGroup, group, existing)}
}

func limitReached(of slot, limit int) *rejection {
	return &rejection{reason: reasonLimit, subject: of.String(),
		message: fmt.Sprintf("the Pods of namespace %q have as many on-demand machines of group %q as the limit allows: %d", of.namespace, of.group, limit)}
}

// machineProblems are the reasons of the condition Ready of an NstanceMachine for which its
// Pod gets an event.
var machineProblems = []string{v1beta1.ReasonProviderError, v1beta1.ReasonInstanceRefused, v1beta1.ReasonOutOfCapacity, v1beta1.ReasonNoShard}

// machineProblem returns why a machine that was created does not run, nil when there is no
// problem that the Pod should report.
func machineProblem(nstanceMachine *v1beta1.NstanceMachine) *rejection {
	ready := meta.FindStatusCondition(nstanceMachine.Status.Conditions, v1beta1.ConditionReady)
	if ready == nil || ready.Status != metav1.ConditionFalse || !slices.Contains(machineProblems, ready.Reason) {
		return nil
	}
	return &rejection{reason: ready.Reason, subject: nstanceMachine.Name,
		message: fmt.Sprintf("machine %s: %s", nstanceMachine.Name, ready.Message)}
}

func nameTaken(uid types.UID) *rejection {
	return &rejection{reason: reasonNameTaken, subject: machineName(uid),
		message: fmt.Sprintf("a Machine or NstanceMachine %q exists already, and is not the machine of this Pod", machineName(uid))}
}
