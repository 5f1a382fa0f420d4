// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package qemu is a provider of VMs on the host of the server (docs/providers.md#qemu). Each
// VM is a process of QEMU in its own folder. The folder has all facts about it, so that a
// server finds its VMs when it starts. Package cloud decides which calls to make.
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

// parallel is how many VMs List queries concurrently.
const parallel = 16

// API makes the calls for the VMs of one shard. It implements cloud.API.
type API struct {
	options *Options
	shard   provider.Shard
	folders folders
	limits  cloud.Limits
	// step is called before each step of a launch or a deletion. Tests use it to stop the
	// process there.
	step func(string)

	// mu guards the fields below. It is also locked while a launch checks the room of a subnet
	// and stores the identity of its VM.
	mu sync.Mutex
	// silent is since when this process has got no response from the QEMU of an instance, by
	// instance id.
	silent map[string]time.Time
}

var _ cloud.API = (*API)(nil)

// NewAPI returns the calls for the VMs of a shard.
func NewAPI(o *Options, shard provider.Shard) *API {
	return &API{
		options: o,
		shard:   shard,
		folders: newFolders(o.Dir, shard.ClusterID, shard.ID),
		limits: cloud.Limits{
			// The calls are local and need no budget.
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

// Limits returns the limits for calls.
func (a *API) Limits() cloud.Limits { return a.limits }

// List returns all VMs. It continues deletions that Terminate has begun, and removes the
// files of unfinished launches of a killed server.
func (a *API) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := a.folders.list()
	if err != nil {
		return nil, err
	}
	// An error must not cancel other calls, which may continue a deletion.
	return cloud.Collect(new(errgroup.Group), parallel, list, func(f folder) (cloud.VM, bool, error) { return a.inspect(ctx, f) })
}

// Find reads the VM of one instance.
func (a *API) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	return a.inspect(ctx, a.folders.of(id))
}

// Room returns how many more VMs a subnet has room for. If its memory is limited, it assumes
// VMs of the smallest type. VMs need room until their folders are deleted.
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

// usage is the number of VMs of a subnet and their memory.
type usage struct {
	instances int
	memory    int64
}

// used returns the usage of a subnet without one instance.
func (a *API) used(subnet, without string) (usage, error) {
	list, err := a.folders.list()
	if err != nil {
		return usage{}, err
	}
	var used usage
	for _, f := range list {
		identity, found, err := f.readIdentity(a.shard)
		if err != nil && f.id != without {
			used.instances++ // it may be in this subnet
			continue
		}
		if found && f.id != without && identity.Resources.Subnet == subnet {
			used.instances++
			used.memory += identity.Resources.Memory
		}
	}
	return used, nil
}

// reserve stores the identity of a VM if its subnet has room for it.
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

// expectedNode returns the function that predicts the Nodes of a shard. The kernel of a guest
// uses at most an eighth of the memory.
func expectedNode(shard provider.Shard) func(provider.Spec) *corev1.Node {
	return func(spec provider.Spec) *corev1.Node {
		return cloud.LinuxNode(shard, spec.Type,
			*resource.NewQuantity(int64(cpus(spec.Type)), resource.DecimalSI),
			*resource.NewQuantity(spec.Type.Memory.Value()/8*7, resource.BinarySI))
	}
}
