// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// List returns all machines of the shard, without those that are being created: they may never
// exist. A list that cannot be complete is an error.
func (a *API) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := a.list(ctx)
	if err != nil {
		return nil, throttled(err)
	}
	preempted := a.preempted(ctx, list)
	var all []cloud.VM
	// One that is created or deleted between two pages may shift others.
	names := map[string]bool{}
	for _, one := range list {
		if names[one.Name] {
			continue
		}
		names[one.Name] = true
		identity, ours, err := a.identify(one)
		if err != nil {
			return nil, err
		}
		if ours && !one.isBeingCreated() {
			all = append(all, preempted.explain(a.machine(one, identity), one))
		}
	}
	return all, nil
}

// Find reads the machine of one instance by its name, which is the instance id. Its labels
// do not count: a user may have changed them. Of one that is being created it is not known
// whether it will exist.
func (a *API) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	m, found, err := a.find(ctx, id)
	if found && m.creating {
		return cloud.VM{}, false, fmt.Errorf("virtual machine %s: %w", id, errCreating)
	}
	return m.VM, found, err
}

var errCreating = fmt.Errorf("it is being created: %w", cloud.ErrInProgress)

// foundMachine is a machine that was read.
type foundMachine struct {
	cloud.VM
	creating bool
}

func (a *API) find(ctx context.Context, id string) (m foundMachine, found bool, err error) {
	if _, err := puidv7.Parse(id); err != nil {
		return m, false, err
	}
	one, err := a.get(ctx, id)
	if isNotFound(err, id) {
		return m, false, nil
	}
	if err != nil {
		return m, false, throttled(err)
	}
	identity, ours, err := a.identify(one)
	if err != nil || !ours {
		return m, false, err
	}
	m.VM = a.preempted(ctx, []vm{one}).explain(a.machine(one, identity), one)
	m.creating = one.isBeingCreated()
	return m, true, nil
}

// throttled returns an error that wraps cloud.ErrThrottled if there were too many calls.
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

// reserved is how many addresses of a range no machine can have.
const reserved = 4

// Room returns how many more machines a subnet has room for: the free addresses of its
// subnetwork.
func (a *API) Room(ctx context.Context, subnet string) (int, error) {
	configured, known := a.options.Subnets[subnet]
	if !known {
		return 0, fmt.Errorf("subnet %q is not configured", subnet)
	}
	one, err := a.subnetwork(ctx, configured)
	if err != nil {
		return 0, throttled(err)
	}
	if one.Utilization != nil {
		for _, part := range one.Utilization.IPv4 {
			if part.Range == "" && part.Free != nil { // others are secondary ranges
				return int(min(max(*part.Free, 0), math.MaxInt32)), nil
			}
		}
	}
	// Compute Engine does not report how many are used.
	prefix, err := netip.ParsePrefix(one.Range)
	if err != nil || !prefix.Addr().Is4() {
		return 0, errors.Join(fmt.Errorf("subnetwork %s has no range of IPv4 addresses", configured.Subnetwork), err)
	}
	return max(0, 1<<(32-prefix.Bits())-reserved), nil
}
