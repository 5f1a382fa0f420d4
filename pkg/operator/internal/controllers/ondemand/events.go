// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/controller"
)

// Reasons of the events about Pods.
const (
	// reasonInvalidAnnotation: the value of an annotation is invalid, or Pods of this kind
	// cannot have it.
	reasonInvalidAnnotation = "InvalidAnnotation"
	// reasonAlreadyBound: the Pod has a Node. The event has type Normal, because this is no
	// problem.
	reasonAlreadyBound = "AlreadyBound"
	// reasonUnknownGroup: no shard has the group.
	reasonUnknownGroup = "UnknownGroup"
	// reasonLimit: the limit of machines is reached.
	reasonLimit = "OnDemandLimit"
	// reasonNotAllowed: Pods of the namespace, or for the group, get no machines.
	reasonNotAllowed = "OnDemandNotAllowed"
	// reasonNameTaken: another object has the name of the machine.
	reasonNameTaken = "NameTaken"
)

// rejection is why a Pod gets no machine. Rejections with the same reason and subject are
// equal, even if their messages differ.
type rejection struct{ reason, subject, message string }

// rejections are the last rejections for which Pods got an event, so that a rejection is
// recorded once and not in each sync. They are kept without their messages.
type rejections struct {
	mu   sync.Mutex
	last map[types.UID]rejection
}

// isNew stores a rejection, and reports whether it differs from the previous rejection.
func (r *rejections) isNew(pod types.UID, latest rejection) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.last[pod]; last.reason == latest.reason && last.subject == latest.subject {
		return false
	}
	if r.last == nil {
		r.last = make(map[types.UID]rejection)
	}
	latest.message = ""
	r.last[pod] = latest
	return true
}

// isBound reports whether the last rejection of a Pod has the reason AlreadyBound.
func (r *rejections) isBound(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[pod].reason == reasonAlreadyBound
}

func (r *rejections) drop(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, pod)
}

// recordRejection records an event about a Pod, unless the Pod has an event for an equal
// rejection.
func (c *Controller) recordRejection(pod *metav1.PartialObjectMetadata, rejected *rejection) {
	const action = "CreateMachine"
	switch {
	case rejected == nil || !c.rejections.isNew(pod.UID, *rejected):
	case rejected.reason == reasonAlreadyBound:
		controller.Record(c.recorder, pod, rejected.reason, action, rejected.message)
	default:
		controller.Warn(c.recorder, pod, rejected.reason, action, rejected.message)
	}
}
