// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/controller"
)

// Reasons of the events that Pods get.
const (
	// reasonInvalidAnnotation: an annotation has a value that it cannot have.
	reasonInvalidAnnotation = "InvalidAnnotation"
	// reasonUnknownGroup: no shard has the group.
	reasonUnknownGroup = "UnknownGroup"
	// reasonLimit: there are as many machines as there may be.
	reasonLimit = "OnDemandLimit"
	// reasonNameTaken: something else has the name of the machine.
	reasonNameTaken = "NameTaken"
)

// complaint is why a Pod gets no machine. Two of one reason and subject are the
// same, whatever else their messages say.
type complaint struct{ reason, subject, message string }

// complaints are what Pods were told last. The same is told once, however often
// the Pod is looked at.
type complaints struct {
	mu   sync.Mutex
	last map[types.UID]complaint
}

// isNew notes a complaint, and tells whether it differs from the last.
func (c *complaints) isNew(pod types.UID, about complaint) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.last[pod]; last.reason == about.reason && last.subject == about.subject {
		return false
	}
	if c.last == nil {
		c.last = make(map[types.UID]complaint)
	}
	c.last[pod] = about
	return true
}

func (c *complaints) forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.last, pod)
}

// complain records an event about a Pod, unless it is what the Pod was told last.
func (c *Controller) complain(pod *metav1.PartialObjectMetadata, about *complaint) {
	if about != nil && c.complaints.isNew(pod.UID, *about) {
		controller.Warn(c.recorder, pod, about.reason, "MakeMachine", about.message)
	}
}
