// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

var errBusy = errors.New("the cloud is busy")

// cloud is a provider that the test controls: instances stay pending or
// terminating until settle. It outlives the servers that use it.
type cloud struct {
	*providertest.Instances

	// capacity is the number of instances per subnet, 1000 if it is not set.
	// unknownCapacity is a subnet whose capacity cannot be read.
	unknownCapacity string
	capacity        map[string]int
	subnets         map[string]string
	// groups are the groups of all instances that ever existed.
	groups map[string]instance.GroupKey
	// reject returns an error for calls that should fail.
	reject func(call call) error
	// cleaned has the instances whose userdata was removed.
	cleaned map[string]bool
	// watch is called with Mu locked after every change.
	watch func()
	calls []call
	// market has the stock by type and market, nil for a cloud that has all.
	market *market
	// lostAnswer reports whether a call was carried out and its answer is lost; nil if none is.
	lostAnswer func() bool
	changed    func(instance.GroupKey)
}

// call is one call to the cloud.
type call struct {
	operation string
	group     instance.GroupKey
	id        string
	at        time.Time
}

func (c call) String() string { return c.operation + " " + c.group.String() }

var (
	_ provider.Provider        = (*cloud)(nil)
	_ provider.UserdataRemover = (*cloud)(nil)
)

// RemoveUserdata implements provider.UserdataRemover.
func (c *cloud) RemoveUserdata(id string) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.cleaned[id] = true
}

func newCloud() *cloud {
	return &cloud{Instances: providertest.NewInstances(), subnets: map[string]string{}, groups: map[string]instance.GroupKey{}, capacity: map[string]int{}, cleaned: map[string]bool{}}
}

func (c *cloud) Run(ctx context.Context, changed func(instance.GroupKey), _ provider.FailureFunc) error {
	c.Mu.Lock()
	c.changed = changed
	c.Mu.Unlock()
	<-ctx.Done()
	return nil
}

func (c *cloud) Capacity(_ context.Context, subnet string) (int, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if subnet == c.unknownCapacity {
		return 0, errBusy
	}
	room, limited := c.capacity[subnet]
	if !limited {
		room = 1000
	}
	for _, taken := range c.subnets {
		if taken == subnet {
			room--
		}
	}
	return max(0, room), nil
}

func (c *cloud) Create(ctx context.Context, spec provider.Spec) error {
	return c.call(ctx, call{"create", spec.Group, spec.ID, time.Now()}, func() error {
		if err := c.buy(spec); err != nil {
			return err
		}
		if _, known := c.VMs[spec.ID]; !known {
			c.VMs[spec.ID] = instance.VM{ID: spec.ID, Group: spec.Group, Origin: spec.Origin}
			c.subnets[spec.ID] = spec.Subnet
			c.groups[spec.ID] = spec.Group
		}
		return nil
	})
}

func (c *cloud) Delete(ctx context.Context, id string) error {
	c.Mu.Lock()
	vm, known := c.VMs[id]
	group := c.groups[id]
	c.Mu.Unlock()
	return c.call(ctx, call{"delete", group, id, time.Now()}, func() error {
		if known {
			vm.State = instance.Terminating
			c.VMs[id] = vm
		}
		return nil
	})
}

func (c *cloud) call(ctx context.Context, call call, do func() error) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.calls = append(c.calls, call)
	if c.reject != nil {
		if err := c.reject(call); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if c.watch != nil {
		c.watch()
	}
	if c.lostAnswer != nil && c.lostAnswer() {
		return errBusy
	}
	return nil
}

// change changes one instance, or all if the id is empty, and notifies the
// reconciler. do returns false to delete the instance.
func (c *cloud) change(id string, do func(*instance.VM) bool) {
	groups := map[instance.GroupKey]struct{}{}
	c.Mu.Lock()
	for _, vm := range slices.Collect(maps.Values(c.VMs)) {
		if id != "" && id != vm.ID {
			continue
		}
		groups[vm.Group] = struct{}{}
		if do(&vm) {
			c.VMs[vm.ID] = vm
		} else {
			delete(c.VMs, vm.ID)
			delete(c.subnets, vm.ID)
		}
	}
	if c.watch != nil {
		c.watch()
	}
	changed := c.changed
	c.Mu.Unlock()
	for group := range groups {
		changed(group)
	}
}

// settle starts pending instances and deletes terminating ones.
func (c *cloud) settle() {
	c.endDoomed()
	c.change("", func(vm *instance.VM) bool {
		switch vm.State {
		case instance.Pending:
			vm.State, vm.ProviderID = instance.Running, "vm-"+vm.ID
		case instance.Terminating:
			return false
		}
		return true
	})
}

// become changes the state of an instance.
func (c *cloud) become(id string, state instance.State) {
	c.change(id, func(vm *instance.VM) bool {
		vm.State = state
		return true
	})
}

// end makes the provider report for a reason that instances have stopped.
func (c *cloud) end(reason string, ids ...string) {
	c.change("", func(vm *instance.VM) bool {
		if slices.Contains(ids, vm.ID) {
			vm.State, vm.Reason = instance.Stopped, reason
		}
		return true
	})
}

// stopHost stops instances that their host starts again with startHost.
func (c *cloud) stopHost(ids ...string) {
	c.change("", func(vm *instance.VM) bool {
		if slices.Contains(ids, vm.ID) {
			vm.State, vm.MayReturn = instance.Stopped, true
		}
		return true
	})
}

func (c *cloud) startHost(ids ...string) {
	c.change("", func(vm *instance.VM) bool {
		if slices.Contains(ids, vm.ID) && vm.State == instance.Stopped {
			vm.State, vm.MayReturn = instance.Running, false
		}
		return true
	})
}

// vanish deletes instances without the server, at the same moment.
func (c *cloud) vanish(ids ...string) {
	c.change("", func(vm *instance.VM) bool { return !slices.Contains(ids, vm.ID) })
}

// rejectNext makes the next calls of an operation fail.
func (c *cloud) rejectNext(operation string, times int) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.reject = func(call call) error {
		if call.operation == operation && times > 0 {
			times--
			return errBusy
		}
		return nil
	}
}

// rejectCalls makes the calls fail for which reject returns an error. It is
// called with Mu locked.
func (c *cloud) rejectCalls(reject func(call) error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.reject = reject
}

// noCreates rejects all create calls.
func noCreates(c call) error {
	if c.operation == "create" {
		return errBusy
	}
	return nil
}

// limit sets the capacity of subnets.
func (c *cloud) limit(capacity map[string]int) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.capacity = capacity
}

func (c *cloud) subnetOf(id string) string {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.subnets[id]
}

// put creates an instance that no server has requested.
func (c *cloud) put(vm instance.VM) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.VMs[vm.ID] = vm
	c.groups[vm.ID] = vm.Group
}

// takeCalls returns the calls since its last call.
func (c *cloud) takeCalls() []call {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

// ids returns the instances of a group that are not terminating, the oldest
// first.
func (c *cloud) ids(group instance.GroupKey) []string {
	var ids []string
	for _, vm := range c.List(group) {
		if vm.State != instance.Terminating {
			ids = append(ids, vm.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// describeCalls returns the calls as text.
func describeCalls(calls []call) []string {
	var text []string
	for _, c := range calls {
		text = append(text, fmt.Sprint(c))
	}
	return text
}
