// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"slices"
	"strings"

	"k8s.io/klog/v2"
)

// byID returns the VMs by instance id. If an instance has several VMs, it returns the VM with
// the first provider id, and the number of other VMs in duplicates. A VM that has ended, or that
// cannot be identified, counts only if the instance has no other.
func byID(list []VM) (vms map[string]VM, duplicates map[string]int) {
	vms, duplicates = make(map[string]VM, len(list)), map[string]int{}
	for _, vm := range slices.SortedFunc(slices.Values(list), func(a, b VM) int { return strings.Compare(a.ProviderID, b.ProviderID) }) {
		other, found := vms[vm.ID]
		switch {
		case !found || other.certainty() < vm.certainty():
			vms[vm.ID] = vm
		case vm.certainty() == isCertain:
			duplicates[vm.ID]++
		}
	}
	return vms, duplicates
}

// certainty says how certain it is that a VM is the VM of its instance.
type certainty int

const (
	hasEnded certainty = iota
	isUnidentified
	isCertain
)

func (vm VM) certainty() certainty {
	switch {
	case vm.Ended:
		return hasEnded
	case vm.Unidentified != "":
		return isUnidentified
	default:
		return isCertain
	}
}

// logUnidentified logs a VM that cannot be identified, and that no known instance has. Its group
// is not known, so nothing can be done for it.
func logUnidentified(ctx context.Context, vm VM) {
	klog.FromContext(ctx).Info("A machine cannot be identified and is left alone", "instance", vm.ID, "providerID", vm.ProviderID, "reason", vm.Unidentified)
}

// concerns reports whether a VM that has ended is the known VM of an instance, or the VM of
// a request. mu must be locked.
func (p *Provider) concerns(vm VM) bool {
	e, known := p.table[vm.ID]
	return known && (e.vm == nil || e.vm.ProviderID == "" || e.vm.ProviderID == vm.ProviderID)
}
