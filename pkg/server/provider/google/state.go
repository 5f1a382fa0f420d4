// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// state returns the state of a virtual machine and its reason (docs/google.md#states). One
// that was stopped still exists, with its disks, and is to be deleted.
func (v vm) state() (instance.State, string) {
	switch v.Status {
	case "PROVISIONING", "STAGING", "PENDING":
		return instance.Pending, ""
	case "RUNNING":
		return instance.Running, ""
	case "REPAIRING":
		return instance.Impaired, v.reason("Compute Engine repairs the virtual machine")
	case "STOPPING", "PENDING_STOP":
		return instance.Stopped, v.reason("the virtual machine is being stopped or deleted")
	case "DEPROVISIONING":
		return instance.Terminating, ""
	case "STOPPED", "TERMINATED":
		return instance.Stopped, v.reason("the virtual machine was stopped")
	case "SUSPENDING", "SUSPENDED":
		return instance.Stopped, v.reason("the virtual machine is suspended")
	}
	return instance.Impaired, fmt.Sprintf("the virtual machine has the unknown status %q", v.Status)
}

// isBeingCreated reports whether the operation that creates a virtual machine has not finished:
// it may fail for lack of capacity, and then the machine does not exist any more. One that a
// user has started again has stopped before.
func (v vm) isBeingCreated() bool { return v.Status == "PROVISIONING" && v.LastStop == "" }

func (v vm) reason(text string) string {
	if v.StatusMessage != "" {
		return text + ": " + v.StatusMessage
	}
	return text
}

// isStopped reports whether a virtual machine has been stopped, by a user or because its
// capacity was needed.
func (v vm) isStopped() bool { return v.Status == "TERMINATED" || v.Status == "STOPPED" }

// preemptions are the ids of virtual machines that were preempted.
type preemptions map[string]bool

// operationPreempted is the type of the operation that stops a spot machine because its
// capacity is needed.
const operationPreempted = "compute.instances.preempted"

// isSpot reports whether the capacity of a virtual machine may be taken away.
func (v vm) isSpot() bool { return v.Scheduling != nil && v.Scheduling.ProvisioningModel == spot }

// preempted returns which of the virtual machines were preempted. Compute Engine reports that
// by an operation only, which is read if a spot machine has stopped. The reason is not worth
// a list: if it cannot be read, preempted returns nil.
func (a *API) preempted(ctx context.Context, list []vm) preemptions {
	if !slices.ContainsFunc(list, func(one vm) bool { return one.isStopped() && one.isSpot() }) {
		return nil
	}
	operations, err := a.operations(ctx, fmt.Sprintf("operationType = %q", operationPreempted))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to read which spot machines were preempted")
		return nil
	}
	found := preemptions{}
	for _, one := range operations {
		if one.OperationType == operationPreempted {
			found[one.TargetID] = true
		}
	}
	return found
}

// explain adds to a spot machine that has stopped why it has.
func (p preemptions) explain(m cloud.VM, one vm) cloud.VM {
	switch {
	case !one.isStopped() || !one.isSpot():
	case p == nil:
		m.Reason = "the spot machine was stopped or preempted"
	case p[one.ID]:
		m.Reason = "the spot machine was preempted"
	}
	return m
}
