// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package cloudtest helps to test package cloud, and providers that use it. It has a cloud in
// memory, a wrapper that makes the calls to any cloud fail, and tests with crashes, random
// walks and outages.
package cloudtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// RejectedSubnet is a subnet where a Cloud rejects each launch.
const RejectedSubnet = "rejected"

// Cloud has the machines of all shards of a test. Each is pending for BootTime and, after
// Terminate, terminating for StopTime.
type Cloud struct {
	BootTime, StopTime time.Duration
	// Room is how many VMs the subnets have room for. Other subnets have no limit.
	Room map[string]int
	// Limits are the limits of its APIs.
	Limits cloud.Limits
	// ForgetRejected is true if the cloud allows to repeat a rejected request with other
	// content.
	ForgetRejected bool

	// mu guards the fields below.
	mu       sync.Mutex
	machines map[string]*machine // by provider id
	tokens   map[string]launch
	made     []string
	stopped  []string
	full     map[string]bool
}

// machine is a machine that was launched and exists.
type machine struct {
	cloud.VM
	shard    provider.Shard
	subnet   string
	launched time.Time
	// stopping is when the termination began.
	stopping time.Time
	// state and reason replace the state that follows from time, if fixed is true.
	fixed bool
}

// launch is the launch for which a token was used.
type launch struct {
	content    string
	providerID string
}

// NewCloud returns a cloud without machines.
func NewCloud() *Cloud {
	return &Cloud{
		BootTime: 20 * time.Second,
		StopTime: 10 * time.Second,
		Room:     map[string]int{},
		Limits: cloud.Limits{
			Reads:        cloud.Budget{PerSecond: 20, Burst: 20},
			Writes:       cloud.Budget{PerSecond: 10, Burst: 10},
			Launches:     4,
			Batch:        50,
			PollInterval: 2 * time.Second,
			IdleInterval: time.Minute,
		},
		machines: map[string]*machine{},
		tokens:   map[string]launch{},
		full:     map[string]bool{},
	}
}

// API returns the calls for the machines of a shard.
func (c *Cloud) API(shard provider.Shard) cloud.API { return api{c, shard} }

// Made returns the instance ids of all machines that were ever created.
func (c *Cloud) Made() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.made)
}

// Terminated returns the instance ids of all machines that Terminate has deleted.
func (c *Cloud) Terminated() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.stopped)
}

// Existing returns the instance ids of the machines that are not deleted, in order.
func (c *Cloud) Existing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	var ids []string
	for _, m := range c.machines {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return ids
}

// settle deletes the machines that have stopped. mu must be locked.
func (c *Cloud) settle() {
	maps.DeleteFunc(c.machines, func(_ string, m *machine) bool {
		return !m.stopping.IsZero() && time.Since(m.stopping) >= c.StopTime
	})
}

// report returns a machine as the cloud reports it now. mu must be locked.
func (c *Cloud) report(m *machine) cloud.VM {
	report := m.VM
	switch {
	case !m.stopping.IsZero():
		report.State = instance.Terminating
	case m.fixed:
	case time.Since(m.launched) < c.BootTime:
		report.State = instance.Pending
	default:
		report.State = instance.Running
	}
	return report
}

type api struct {
	*Cloud
	shard provider.Shard
}

// Launch creates a VM, or returns the VM with the same token and content.
func (a api) Launch(_ context.Context, r cloud.Request) (cloud.VM, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settle()
	content := fmt.Sprintf("%s %s %s %v %q", a.shard.ID, r.Type.Name, r.Subnet, r.Args, r.Userdata)
	if used, found := a.tokens[r.Token]; found {
		if used.content != content {
			return cloud.VM{}, fmt.Errorf("token %s: %w", r.Token, cloud.ErrTokenUsed)
		}
		if m, exists := a.machines[used.providerID]; exists {
			return a.report(m), nil
		}
		return cloud.VM{ID: r.ID, ProviderID: used.providerID, Group: r.Group, Origin: r.Origin, State: instance.Failed, Reason: "the machine was deleted"}, nil
	}
	if rejection := a.reject(r); rejection != nil {
		if !a.ForgetRejected {
			a.tokens[r.Token] = launch{content: content}
		}
		return cloud.VM{}, rejection
	}
	a.made = append(a.made, r.ID)
	number := len(a.made)
	m := &machine{
		VM: cloud.VM{
			ID:         r.ID,
			ProviderID: fmt.Sprintf("i-%06d", number),
			Group:      r.Group,
			Origin:     r.Origin,
			Type:       r.Type.Name,
			Addresses:  []netip.Addr{netip.AddrFrom4([4]byte{10, byte(number >> 16), byte(number >> 8), byte(number)})},
		},
		shard:    a.shard,
		subnet:   r.Subnet,
		launched: time.Now(),
	}
	a.tokens[r.Token] = launch{content: content, providerID: m.ProviderID}
	a.machines[m.ProviderID] = m
	return a.report(m), nil
}

// reject returns the reason why a launch is rejected, or nil. mu must be locked.
func (a api) reject(r cloud.Request) error {
	switch room, limited := a.room(r.Subnet); {
	case r.Subnet == RejectedSubnet:
		return &cloud.Rejection{Scope: cloud.Scope{Subnet: r.Subnet}, Err: errors.New("the subnet accepts no machines")}
	case a.full[r.Type.Name]:
		return &cloud.Rejection{Scope: cloud.Scope{Type: r.Type.Name}, RetryAfter: 3 * time.Minute, Err: provider.OutOfCapacity("insufficient capacity for %s", r.Type.Name)}
	case limited && room <= 0:
		return &cloud.Rejection{Scope: cloud.Scope{Subnet: r.Subnet}, Err: fmt.Errorf("no free address in %s", r.Subnet)}
	}
	return nil
}

// room returns false for a subnet without a limit. mu must be locked.
func (a api) room(subnet string) (int, bool) {
	room, limited := a.Cloud.Room[subnet]
	if !limited {
		return math.MaxInt32, false
	}
	for _, m := range a.machines {
		if m.subnet == subnet {
			room--
		}
	}
	return room, true
}

// Terminate deletes machines.
func (a api) Terminate(_ context.Context, list []cloud.VM) map[string]error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settle()
	errs := map[string]error{}
	for _, vm := range list {
		m, exists := a.machines[vm.ProviderID]
		switch {
		case !exists || m.shard != a.shard:
			errs[vm.ID] = cloud.ErrNotFound
		case m.stopping.IsZero():
			m.stopping = time.Now()
			a.stopped = append(a.stopped, m.ID)
		}
	}
	return errs
}

// List returns the machines of the shard.
func (a api) List(context.Context) ([]cloud.VM, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settle()
	var list []cloud.VM
	for _, m := range a.machines {
		if m.shard == a.shard {
			list = append(list, a.report(m))
		}
	}
	slices.SortFunc(list, func(x, y cloud.VM) int { return strings.Compare(x.ID, y.ID) })
	return list, nil
}

// Find returns the machine of an instance.
func (a api) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	list, err := a.List(ctx)
	at := slices.IndexFunc(list, func(vm cloud.VM) bool { return vm.ID == id })
	if err != nil || at < 0 {
		return cloud.VM{}, false, err
	}
	return list[at], true, nil
}

// Room returns how many more machines a subnet has room for.
func (a api) Room(_ context.Context, subnet string) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settle()
	room, _ := a.room(subnet)
	return max(0, room), nil
}

// Limits returns the limits of the cloud.
func (a api) Limits() cloud.Limits { return a.Cloud.Limits }

// Vanish deletes the VMs of instances, like another client of the cloud.
func (c *Cloud) Vanish(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.machines, func(_ string, m *machine) bool { return slices.Contains(ids, m.ID) })
}

// Become sets the state of an instance's machine.
func (c *Cloud) Become(id string, state instance.State, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.machines {
		if m.ID == id {
			m.State, m.Reason, m.fixed = state, reason, true
		}
	}
}

// Duplicate creates a second machine of an instance.
func (c *Cloud) Duplicate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range slices.Collect(maps.Values(c.machines)) {
		if m.ID == id {
			second := *m
			second.ProviderID += "-second"
			c.machines[second.ProviderID] = &second
		}
	}
}

// SetFull makes the cloud reject launches of an instance type for lack of capacity.
func (c *Cloud) SetFull(typeName string, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full[typeName] = full
}
