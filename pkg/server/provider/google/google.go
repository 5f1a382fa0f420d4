// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package google is a provider of virtual machines of Google Compute Engine (docs/google.md).
// It only calls Compute Engine. Package cloud decides which calls to make.
package google

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// parallel is the number of concurrent requests of one termination.
const parallel = 8

// visibilityDelay is how long responses may not show a virtual machine after its launch.
const visibilityDelay = time.Minute

// emptyDelay is how long a list proves nothing if it shows no virtual machine although there
// were some, even if none is found by its name.
const emptyDelay = 15 * time.Minute

// API makes the calls for the virtual machines of one shard. It implements cloud.API. It has
// no state, because Compute Engine remembers requests and their operations.
type API struct {
	client  *googleapi.Client
	options *Options
	shard   provider.Shard
	limits  cloud.Limits
	// timeout is how long one call waits for an operation.
	timeout time.Duration
	// step is called before each step of a launch or a termination, and before a change of a
	// network interface. Tests use it to stop the process there, or to change something.
	step func(string)
}

var _ cloud.API = (*API)(nil)

// NewAPI returns an API with application default credentials. It sends no request.
func NewAPI(o *Options, shard provider.Shard) (*API, error) {
	return newAPI(o, shard, googleapi.NewTransport(scope))
}

// newAPI returns an API that uses a transport. The transport adds credentials.
func newAPI(o *Options, shard provider.Shard, transport http.RoundTripper) (*API, error) {
	if err := validateShard(shard); err != nil {
		return nil, fmt.Errorf("provider %s: %w", Name, err)
	}
	return &API{
		client:  googleapi.New(o.endpoint(), transport),
		options: o,
		shard:   shard,
		limits: cloud.Limits{
			Reads:           cloud.Budget{PerSecond: 10, Burst: 20},
			Writes:          cloud.Budget{PerSecond: 5, Burst: 20},
			Launches:        10,
			Batch:           50,
			VisibilityDelay: visibilityDelay,
			EmptyDelay:      emptyDelay,
			PollInterval:    3 * time.Second,
			IdleInterval:    30 * time.Second,
		},
		timeout: operationTimeout,
		step:    func(string) {},
	}, nil
}

// Limits returns limits below Compute Engine's default rate quotas
// (https://cloud.google.com/compute/api-quota).
func (a *API) Limits() cloud.Limits { return a.limits }

// List returns all VMs of the shard, except VMs that are being created, because their
// creation may fail. It never returns an incomplete list.
func (a *API) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := a.list(ctx)
	if err != nil {
		return nil, throttled(err)
	}
	preempted := a.preempted(ctx, list)
	var all []cloud.VM
	// If a virtual machine is created or deleted between two pages, others may appear twice.
	names := map[string]bool{}
	for _, vm := range list {
		if names[vm.Name] {
			continue
		}
		names[vm.Name] = true
		identity, unidentified, ours := a.identify(vm)
		if ours && !vm.isBeingCreated() {
			found := preempted.explain(a.vm(vm, identity), vm)
			found.Unidentified = unidentified
			all = append(all, found)
		}
	}
	return all, nil
}

// Find reads the VM of one instance by its name, which is the instance id. It ignores the
// labels, because a user may have changed them. While the VM is being created, Find returns
// an error, because the creation may fail.
func (a *API) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	m, found, err := a.find(ctx, id)
	if found && m.creating {
		return cloud.VM{}, false, fmt.Errorf("virtual machine %s: %w", id, errCreating)
	}
	return m.VM, found, err
}

var errCreating = fmt.Errorf("it is being created: %w", cloud.ErrInProgress)

// foundVM is a VM that was read.
type foundVM struct {
	cloud.VM
	creating bool
}

func (a *API) find(ctx context.Context, id string) (m foundVM, found bool, err error) {
	if _, err := puidv7.Parse(id); err != nil {
		return m, false, err
	}
	vm, err := a.get(ctx, id)
	if isNotFound(err, id) {
		return m, false, nil
	}
	if err != nil {
		return m, false, throttled(err)
	}
	identity, unidentified, ours := a.identify(vm)
	if !ours {
		return m, false, nil
	}
	m.VM = a.preempted(ctx, []virtualMachine{vm}).explain(a.vm(vm, identity), vm)
	m.Unidentified, m.creating = unidentified, vm.isBeingCreated()
	return m, true, nil
}

// throttled wraps cloud.ErrThrottled around an error that means too many requests.
func throttled(err error) error {
	if googleapi.IsThrottled(err) {
		return fmt.Errorf("%w: %w", cloud.ErrThrottled, err)
	}
	return err
}

// subnetworkProject returns the project of a subnetwork.
func (a *API) subnetworkProject(subnet Subnet) string {
	return cmp.Or(subnet.Project, a.options.Project)
}

// reserved is the number of addresses of a subnet's primary range that Google reserves
// (https://cloud.google.com/vpc/docs/subnets#unusable-ip-addresses-in-every-subnet).
const reserved = 4

// Room returns how many more VMs a subnet has room for: the number of free addresses in its
// subnetwork, without the reserve.
func (a *API) Room(ctx context.Context, subnet string) (int, error) {
	configured, known := a.options.Subnets[subnet]
	if !known {
		return 0, fmt.Errorf("subnet %q is not configured", subnet)
	}
	subnetwork, err := a.subnetwork(ctx, configured)
	if err != nil {
		return 0, throttled(err)
	}
	if configured.StackType == ipv6Only {
		return math.MaxInt32, nil // a /64 per subnetwork, more than any quota
	}
	if subnetwork.Utilization != nil {
		for _, part := range subnetwork.Utilization.IPv4 {
			if part.Range == "" && part.Free != nil { // others are secondary ranges
				return int(min(max(*part.Free-int64(a.options.AddressReserve), 0), math.MaxInt32)), nil
			}
		}
	}
	// Without utilization details, assume that no address is used.
	prefix, err := netip.ParsePrefix(subnetwork.Range)
	if err != nil || !prefix.Addr().Is4() {
		return 0, errors.Join(fmt.Errorf("subnetwork %s has no range of IPv4 addresses", configured.Subnetwork), err)
	}
	return max(0, 1<<(32-prefix.Bits())-reserved-int(a.options.AddressReserve)), nil
}

// expectedNode returns the function that predicts the Nodes of a shard. The kernel of a guest
// uses at most an eighth of the memory.
func expectedNode(shard provider.Shard) func(provider.Spec) *corev1.Node {
	return func(spec provider.Spec) *corev1.Node {
		return cloud.LinuxNode(shard, spec.Type, spec.Type.CPU,
			*resource.NewQuantity(spec.Type.Memory.Value()/8*7, resource.BinarySI))
	}
}

// state returns the state of a virtual machine and its reason (docs/google.md#states,
// https://cloud.google.com/compute/docs/instances/instance-life-cycle). A stopped virtual
// machine still exists, with its disks, and has to be deleted.
func (v virtualMachine) state() (instance.State, string) {
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

// isBeingCreated reports whether the operation that creates a virtual machine is in progress.
// It may fail for lack of capacity, and then the virtual machine disappears. If a user has
// started a stopped virtual machine again, it has a time of its last stop.
func (v virtualMachine) isBeingCreated() bool { return v.Status == "PROVISIONING" && v.LastStop == "" }

func (v virtualMachine) reason(text string) string {
	if v.StatusMessage != "" {
		return text + ": " + v.StatusMessage
	}
	return text
}

// isStopped reports whether a virtual machine was stopped, by a user or by a preemption.
func (v virtualMachine) isStopped() bool { return v.Status == "TERMINATED" || v.Status == "STOPPED" }

// preemptions are the ids of preempted virtual machines.
type preemptions map[string]bool

// operationPreempted is the type of the operation that preempts a spot VM
// (https://cloud.google.com/compute/docs/instances/spot).
const operationPreempted = "compute.instances.preempted"

// isSpot reports whether a virtual machine may be preempted.
func (v virtualMachine) isSpot() bool {
	return v.Scheduling != nil && v.Scheduling.ProvisioningModel == spot
}

// preempted returns which virtual machines were preempted. Compute Engine reports a
// preemption only as an operation, so the operations are read if a spot VM has stopped. If
// they cannot be read, preempted returns nil, because the list is more important than a
// reason.
func (a *API) preempted(ctx context.Context, list []virtualMachine) preemptions {
	if !slices.ContainsFunc(list, func(vm virtualMachine) bool { return vm.isStopped() && vm.isSpot() }) {
		return nil
	}
	operations, err := a.operations(ctx, fmt.Sprintf("operationType = %q", operationPreempted))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to read which spot machines were preempted")
		return nil
	}
	found := preemptions{}
	for _, op := range operations {
		if op.OperationType == operationPreempted {
			found[op.TargetID] = true
		}
	}
	return found
}

// explain adds the reason why a spot VM has stopped.
func (p preemptions) explain(m cloud.VM, vm virtualMachine) cloud.VM {
	switch {
	case !vm.isStopped() || !vm.isSpot():
	case p == nil:
		m.Reason = "the spot machine was stopped or preempted"
	case p[vm.ID]:
		// Compute Engine preempts a machine because it needs the capacity.
		m.Reason, m.NoCapacity = "the spot machine was preempted", true
	}
	return m
}
