// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package qemu is a provider of virtual machines on the host of the server
// (docs/providers.md#qemu). Each instance is a process of QEMU in a folder of its own, which
// has all that is known about it: a server that starts finds the machines there. Package
// machines decides what to do with them.
package qemu

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// parallel is how many machines List queries at a time.
const parallel = 16

// API are the calls for the machines of one shard. It implements cloud.API.
type API struct {
	options *Options
	shard   provider.Shard
	folders folders
	limits  cloud.Limits
	// step is called before each step of a launch or a deletion. Tests stop the process
	// there.
	step func(string)

	// mu guards the fields below. It is locked from the count of what a subnet has room for
	// until the identity of the next machine is stored.
	mu sync.Mutex
	// silent is since when the QEMU of an instance does not answer, as far as this process
	// knows.
	silent map[string]time.Time
}

var _ cloud.API = (*API)(nil)

// NewAPI returns the calls for the machines of a shard.
func NewAPI(o *Options, shard provider.Shard) *API {
	return &API{
		options: o,
		shard:   shard,
		folders: newFolders(o.Dir, shard.ClusterID, shard.ID),
		limits: cloud.Limits{
			// The calls are local: they need no budget.
			Reads:        cloud.Budget{PerSecond: 100, Burst: 100},
			Writes:       cloud.Budget{PerSecond: 100, Burst: 100},
			Launches:     4,
			Batch:        50,
			PollInterval: time.Second,
			IdleInterval: 10 * time.Second,
		},
		step:   func(string) {},
		silent: map[string]time.Time{},
	}
}

// Limits returns how the calls may be made.
func (a *API) Limits() cloud.Limits { return a.limits }

// List returns all machines. It continues deletions that Terminate has begun, and
// removes what launches of a server that was killed have left.
func (a *API) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := a.folders.list()
	if err != nil {
		return nil, err
	}
	// An error cancels no other call: a call may continue a deletion.
	return cloud.Collect(new(errgroup.Group), parallel, list, func(f folder) (cloud.VM, bool, error) { return a.inspect(ctx, f) })
}

// Find reads the machine of one instance.
func (a *API) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	return a.inspect(ctx, a.folders.of(id))
}

// Room returns how many more machines a subnet has room for: those of the smallest type,
// if its memory is limited. Machines need room until their folders are deleted.
func (a *API) Room(_ context.Context, subnet string) (int, error) {
	limits := a.options.Subnets[subnet]
	used, err := a.used(subnet, "")
	if err != nil {
		return 0, err
	}
	room := math.MaxInt32
	if limits.Instances != nil {
		room = int(*limits.Instances) - used.instances
	}
	if limit := limits.Memory.Value(); limit > 0 {
		smallest := int64(math.MaxInt64)
		for _, t := range a.options.InstanceTypes {
			smallest = min(smallest, t.Memory.Value())
		}
		room = min(room, int((limit-used.memory)/smallest))
	}
	return max(0, room), nil
}

// usage is what the machines of a subnet use.
type usage struct {
	instances int
	memory    int64
}

// used returns what the machines of a subnet use, without that of one instance.
func (a *API) used(subnet, without string) (usage, error) {
	list, err := a.folders.list()
	if err != nil {
		return usage{}, err
	}
	var used usage
	for _, f := range list {
		identity, found, err := f.readIdentity(a.shard)
		if err != nil {
			return usage{}, err
		}
		if found && f.id != without && identity.Resources.Subnet == subnet {
			used.instances++
			used.memory += identity.Resources.Memory
		}
	}
	return used, nil
}

// reserve stores the identity of a machine if its subnet has room for it.
func (a *API) reserve(f folder, spec provider.Spec) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	used, err := a.used(spec.Subnet, spec.ID)
	if err != nil {
		return err
	}
	limits, needed := a.options.Subnets[spec.Subnet], spec.Type.Memory.Value()
	if limit := limits.Instances; limit != nil && used.instances >= int(*limit) {
		return &cloud.Rejection{
			Scope: cloud.Scope{Subnet: spec.Subnet},
			Err:   fmt.Errorf("%w and has %d", provider.OutOfCapacity("subnet %s has room for %d instances", spec.Subnet, *limit), used.instances),
		}
	}
	if limit := limits.Memory.Value(); limit > 0 && used.memory+needed > limit {
		return &cloud.Rejection{
			Scope: cloud.Scope{Subnet: spec.Subnet, Type: spec.Type.Name},
			Err: fmt.Errorf("%w: it has %s, of which %d MiB are left, and the type needs %s",
				provider.OutOfCapacity("subnet %s has no memory for instance type %s", spec.Subnet, spec.Type.Name),
				limits.Memory.String(), (limit-used.memory)>>20, spec.Type.Memory.String()),
		}
	}
	return f.writeJSON(identityFile, newIdentity(a.shard, spec))
}

// expectedNode returns the Nodes of the machines of a shard. The kernel of a guest needs a
// part of the memory, at most an eighth.
func expectedNode(shard provider.Shard) func(provider.Spec) *corev1.Node {
	return func(spec provider.Spec) *corev1.Node {
		return cloud.LinuxNode(shard, spec.Type,
			*resource.NewQuantity(int64(cpus(spec.Type)), resource.DecimalSI),
			*resource.NewQuantity(spec.Type.Memory.Value()/8*7, resource.BinarySI))
	}
}
