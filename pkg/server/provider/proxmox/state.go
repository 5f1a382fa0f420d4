// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"fmt"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// The statuses of a virtual machine that have a meaning here. Others are of QEMU.
const (
	statusRunning = "running"
	statusStopped = "stopped"
)

// vmState is the state of a virtual machine and its reason.
type vmState struct {
	state  instance.State
	reason string
}

// inspect returns the machine of a virtual machine, nil if that does not exist any more.
// The list shows what its node has reported some time ago, which is believed only if it
// runs.
func (a *API) inspect(ctx context.Context, one vm) (*cloud.VM, error) {
	m := one.identity.machine(a.shard)
	state := vmState{state: instance.Running}
	if one.status != statusRunning {
		current, exists, err := a.current(ctx, one)
		if err != nil || !exists {
			return nil, err
		}
		state = current
	}
	a.mu.Lock()
	a.states[one.vmid] = state
	a.mu.Unlock()
	m.State, m.Reason = state.state, state.reason
	return &m, nil
}

// current reads the state of a virtual machine from its node. If that does not respond,
// nothing is known but what was before: its virtual machines may run.
func (a *API) current(ctx context.Context, one vm) (state vmState, exists bool, err error) {
	if one.reachable {
		status, err := a.client.status(ctx, one.node, one.vmid)
		switch {
		case err == nil:
			return one.stateOf(status), true, nil
		case isNotExist(err):
			return vmState{}, false, nil
		case !isUnreachable(err):
			return vmState{}, false, fmt.Errorf("read the status of virtual machine %d: %w", one.vmid, err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if state, known := a.states[one.vmid]; known {
		return state, true, nil
	}
	return vmState{state: instance.Running}, true, nil
}

// stateOf returns the state of a virtual machine by its status.
func (one vm) stateOf(status vmStatus) vmState {
	if status.Status == statusStopped {
		switch {
		case status.Lock == lockClone:
			return vmState{state: instance.Pending}
		case !one.complete:
			return vmState{state: instance.Failed, reason: "the virtual machine was cloned and never started"}
		}
		return vmState{state: instance.Stopped, reason: "the virtual machine is stopped"}
	}
	switch status.QEMU {
	case "", statusRunning:
		return vmState{state: instance.Running}
	case "prelaunch", "inmigrate":
		return vmState{state: instance.Pending}
	case "shutdown":
		return vmState{state: instance.Stopped, reason: "the guest has shut down"}
	case "guest-panicked":
		return vmState{state: instance.Failed, reason: "the kernel of the guest has panicked"}
	case "internal-error":
		return vmState{state: instance.Failed, reason: "QEMU reports an internal error"}
	default:
		return vmState{state: instance.Impaired, reason: "QEMU reports the state " + status.QEMU}
	}
}
