// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"fmt"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/machines"
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

// preempted returns which of the virtual machines were preempted. Compute Engine reports that
// by an operation only, which is read if a spot machine has stopped.
func (a *API) preempted(ctx context.Context, list []vm) (preemptions, error) {
	needed := false
	for _, one := range list {
		needed = needed || one.isStopped() && one.Scheduling != nil && one.Scheduling.ProvisioningModel == spot
	}
	if !needed {
		return nil, nil
	}
	operations, err := a.operations(ctx, fmt.Sprintf("operationType = %q", operationPreempted))
	if err != nil {
		return nil, err
	}
	found := preemptions{}
	for _, one := range operations {
		if one.OperationType == operationPreempted {
			found[one.TargetID] = true
		}
	}
	return found, nil
}

// explain adds that a machine was preempted.
func (p preemptions) explain(m machines.Machine, one vm) machines.Machine {
	if one.isStopped() && p[one.ID] {
		m.Reason = "the spot machine was preempted"
	}
	return m
}
