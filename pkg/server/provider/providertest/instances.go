// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Instances is a provider of the instances that a test puts into it. A test that needs
// the methods that it does not implement embeds it.
type Instances struct {
	provider.Provider

	// SyncedCh is what Synced returns. It is closed.
	SyncedCh chan struct{}
	// Mu guards VMs, which has the instances by id, and Gets, the number of calls of Get.
	Mu   sync.Mutex
	VMs  map[string]instance.VM
	Gets int
}

// NewInstances returns a provider without instances.
func NewInstances() *Instances {
	i := &Instances{SyncedCh: make(chan struct{}), VMs: map[string]instance.VM{}}
	close(i.SyncedCh)
	return i
}

// Put creates or changes an instance.
func (i *Instances) Put(vm instance.VM) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	i.VMs[vm.ID] = vm
}

// Remove deletes an instance.
func (i *Instances) Remove(id string) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	delete(i.VMs, id)
}

// Synced returns SyncedCh.
func (i *Instances) Synced() <-chan struct{} { return i.SyncedCh }

// Get returns an instance.
func (i *Instances) Get(id string) (instance.VM, bool) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	i.Gets++
	vm, known := i.VMs[id]
	return vm, known
}

// List returns the instances of a group.
func (i *Instances) List(group instance.GroupKey) []instance.VM {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	vms := slices.Collect(maps.Values(i.VMs))
	return slices.DeleteFunc(vms, func(vm instance.VM) bool { return vm.Group != group })
}

// Groups returns the groups of the instances.
func (i *Instances) Groups() []instance.GroupKey {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	groups := map[instance.GroupKey]struct{}{}
	for _, vm := range i.VMs {
		groups[vm.Group] = struct{}{}
	}
	return slices.Collect(maps.Keys(groups))
}

// ExpectedNode returns nil: the Nodes are not known in advance.
func (*Instances) ExpectedNode(provider.Spec) *corev1.Node { return nil }
