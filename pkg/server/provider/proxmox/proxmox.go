// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package proxmox is a provider of virtual machines of a Proxmox VE cluster
// (docs/providers.md#proxmox). It only calls the cluster. Package cloud decides which calls
// to make.
package proxmox

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// parallel is the number of concurrent requests for one list or termination.
const parallel = 8

// visibilityDelay is how long a node may take to know a change on another node, and to begin
// an accepted clone.
const visibilityDelay = 15 * time.Second

// API makes the calls for the virtual machines of one shard. It implements cloud.API.
//
// The cluster stores the identity of instances in the configurations of the virtual machines:
// in notes, which are read once and remembered, and in tags, which every list shows.
type API struct {
	client  *client
	options *Options
	shard   provider.Shard
	limits  cloud.Limits
	// timeout is how long one call waits for tasks.
	timeout time.Duration
	// step is called before each step of a launch or a termination. Tests use it to stop the
	// process there.
	step func(string)

	// mu guards the fields below.
	mu sync.Mutex
	// checked is true once the token had all privileges.
	checked bool
	// lastVMID is the highest VMID that this process has claimed.
	lastVMID int
	// readings and states have the last read facts by VMID.
	readings map[int]*reading
	states   map[int]vmState
	// launches has the launches in progress, by instance id.
	launches map[string]*launch
	// cloning has the launches that are cloning at present.
	cloning map[cloneKey]*launch
}

var _ cloud.API = (*API)(nil)

// NewAPI returns the calls for the virtual machines of a shard.
func NewAPI(o *Options, shard provider.Shard) (*API, error) { return newAPI(o, shard, nil) }

// newAPI returns an API that connects with dial, or normally if dial is nil.
func newAPI(o *Options, shard provider.Shard, dial dialer) (*API, error) {
	client, err := o.Connection.newClient(dial)
	if err != nil {
		return nil, err
	}
	return &API{
		client:  client,
		options: o,
		shard:   shard,
		limits: cloud.Limits{
			Reads:           cloud.Budget{PerSecond: 10, Burst: 20},
			Writes:          cloud.Budget{PerSecond: 5, Burst: 10},
			Launches:        4,
			Batch:           16,
			VisibilityDelay: visibilityDelay,
			PollInterval:    3 * time.Second,
			IdleInterval:    15 * time.Second,
		},
		timeout:  taskTimeout,
		step:     func(string) {},
		readings: map[int]*reading{},
		states:   map[int]vmState{},
		launches: map[string]*launch{},
		cloning:  map[cloneKey]*launch{},
	}, nil
}

// Limits returns limits that a cluster serves without delay.
func (a *API) Limits() cloud.Limits { return a.limits }

// List returns all VMs, except VMs whose launch is in progress.
func (a *API) List(ctx context.Context) ([]cloud.VM, error) {
	if err := a.checkPrivileges(ctx); err != nil {
		return nil, err
	}
	found, err := a.inventory(ctx)
	if err != nil {
		return nil, err
	}
	listed := slices.Clone(found.unidentified)
	for _, vm := range found.ours {
		if !a.isLaunching(vm.identity.InstanceID) {
			listed = append(listed, vm)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	return cloud.Collect(group, parallel, listed, func(vm virtualMachine) (cloud.VM, bool, error) { return a.inspect(ctx, vm) })
}

// Find reads the VM of one instance. It returns false only if all virtual machines of the
// cluster are known, and if the token may still see them.
func (a *API) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	found, err := a.inventory(ctx)
	if err != nil {
		return cloud.VM{}, false, err
	}
	if all := found.of(id); len(all) > 0 {
		vm, exists, err := a.inspect(ctx, all[0])
		if err == nil && !exists {
			err = fmt.Errorf("virtual machine %d was deleted or moved meanwhile", all[0].vmid)
		}
		return vm, exists, err
	}
	if vm, exists := found.unidentifiedOf(id); exists {
		return a.inspect(ctx, vm)
	}
	if err := found.certain(); err != nil {
		return cloud.VM{}, false, err
	}
	return cloud.VM{}, false, a.checkVisibility(ctx)
}

// inventory has the resources of the cluster at one time.
type inventory struct {
	resources []entry
	ours      []virtualMachine
	// unidentified has the virtual machines of which only the instance id is known, without
	// those whose instance has another.
	unidentified []virtualMachine
	// online tells which nodes of the cluster are online.
	online map[string]bool
	// unknown has the virtual machines that may belong to the shard: clones in progress, virtual
	// machines that were moved since the list, and virtual machines without tags whose
	// configuration cannot be read. A clone with several disks gets its identity before the
	// last disk is cloned.
	unknown []virtualMachine
}

// unidentifiedOf returns a virtual machine that cannot be identified and seems to be the machine
// of an instance.
func (i *inventory) unidentifiedOf(id string) (virtualMachine, bool) {
	at := slices.IndexFunc(i.unidentified, func(vm virtualMachine) bool { return vm.identity.InstanceID == id })
	if at < 0 {
		return virtualMachine{}, false
	}
	return i.unidentified[at], true
}

// of returns the virtual machines of an instance.
func (i *inventory) of(id string) []virtualMachine {
	return slices.DeleteFunc(slices.Clone(i.ours), func(vm virtualMachine) bool { return vm.identity.InstanceID != id })
}

// certain returns an error if an unknown virtual machine may belong to the shard.
func (i *inventory) certain() error {
	if len(i.unknown) == 0 {
		return nil
	}
	var names []string
	for _, vm := range i.unknown {
		names = append(names, fmt.Sprintf("%d on node %s", vm.vmid, vm.node))
	}
	return fmt.Errorf("it is not known yet whose virtual machines these are: %s", strings.Join(names, ", "))
}

// Room returns how many more virtual machines a subnet has room for.
func (a *API) Room(ctx context.Context, subnet string) (int, error) {
	limit := a.options.Subnets[subnet].Instances
	if limit == nil {
		return math.MaxInt32, nil
	}
	found, err := a.inventory(ctx)
	if err != nil {
		return 0, err
	}
	room := int(*limit)
	for _, vm := range found.ours {
		// The caller counts the virtual machines that it launches.
		if vm.identity.Resources.Subnet == subnet && !a.isLaunching(vm.identity.InstanceID) {
			room--
		}
	}
	room -= len(found.unidentified)
	for _, vm := range found.unknown {
		// It may be of a process that was stopped.
		if !a.isClaimed(vm.vmid) {
			room--
		}
	}
	return max(0, room), nil
}

// The statuses of a virtual machine that have a meaning here. Others are of QEMU.
const (
	statusRunning = "running"
	statusStopped = "stopped"
)

// vmState is the state of a virtual machine and its reason.
type vmState struct {
	state  instance.State
	reason string
	// mayReturn is true if the node starts the virtual machine when it has booted: onboot is set.
	mayReturn bool
}

// inspect returns the instance of a virtual machine, and false if the virtual machine does
// not exist any more. The list shows the status that its node has reported some time ago.
// Only the status "running" is trusted.
func (a *API) inspect(ctx context.Context, vm virtualMachine) (m cloud.VM, exists bool, err error) {
	m = vm.identity.vm(a.shard)
	m.Unidentified = vm.unidentified
	state := vmState{state: instance.Running}
	if vm.status != statusRunning {
		current, exists, err := a.current(ctx, vm)
		if err != nil || !exists {
			return cloud.VM{}, false, err
		}
		state = current
	}
	a.mu.Lock()
	a.states[vm.vmid] = state
	a.mu.Unlock()
	m.State, m.Reason, m.MayReturn = state.state, state.reason, state.mayReturn
	return m, true, nil
}

// current reads the state of a virtual machine from its node. If that does not respond,
// nothing is known but what was before: its virtual machines may run.
func (a *API) current(ctx context.Context, vm virtualMachine) (state vmState, exists bool, err error) {
	if vm.reachable {
		status, err := a.client.status(ctx, vm.node, vm.vmid)
		switch {
		case err == nil:
			return vm.stateOf(status), true, nil
		case isNotExist(err):
			return vmState{}, false, nil
		case !isUnreachable(err):
			return vmState{}, false, fmt.Errorf("read the status of virtual machine %d: %w", vm.vmid, err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if state, known := a.states[vm.vmid]; known {
		return state, true, nil
	}
	return vmState{state: instance.Running}, true, nil
}

// stateOf returns the state of a virtual machine by its status.
func (vm virtualMachine) stateOf(status vmStatus) vmState {
	if status.Status == statusStopped {
		switch {
		case status.Lock == lockClone:
			return vmState{state: instance.Pending}
		case !vm.complete && vm.unidentified == "":
			return vmState{state: instance.Failed, reason: "the virtual machine was cloned and never started"}
		}
		return vmState{state: instance.Stopped, reason: "the virtual machine is stopped", mayReturn: true}
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

// expectedNode returns the Nodes of the machines of a shard. The kernel of a guest needs a
// part of the memory, at most an eighth.
func expectedNode(shard provider.Shard) func(provider.Spec) *corev1.Node {
	return func(spec provider.Spec) *corev1.Node {
		return cloud.LinuxNode(shard, spec.Type,
			*resource.NewQuantity(cpus(spec.Type), resource.DecimalSI),
			*resource.NewQuantity(spec.Type.Memory.Value()/8*7, resource.BinarySI))
	}
}
