// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// count returns how many instances are pending or running: the Nodes that have
// value in an index, and the requests that match. Those that are being deleted do
// not count. mu must be locked.
func (p *Provider) count(index, value string, match func(provider.Spec) bool) int {
	count := 0
	for _, node := range p.nodesBy(index, value) {
		// Requests are counted below.
		if _, requested := p.requests[node.Name]; !requested && fromNode(node).State != instance.Terminating {
			count++
		}
	}
	for _, request := range p.requests {
		if !request.delete && match(request.spec) {
			count++
		}
	}
	return count
}

// room returns how many more instances fit into a subnet of a capacity. There may
// be too many: the capacity may have been higher. mu must be locked.
func (p *Provider) room(subnet string, capacity int32) int {
	used := p.count(bySubnet, subnet, func(spec provider.Spec) bool { return spec.Subnet == subnet })
	return max(0, int(capacity)-used)
}

// CheckCapacity returns an error while the quota of the type is used up or the subnet is
// full.
func (p *Provider) CheckCapacity(spec provider.Spec) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkCapacity(spec)
}

// checkCapacity is CheckCapacity with mu locked.
func (p *Provider) checkCapacity(spec provider.Spec) error {
	typeName := spec.Type.Name
	if quota := spec.Type.Quota; quota != nil {
		used := p.count(byType, typeName, func(spec provider.Spec) bool { return spec.Type.Name == typeName })
		if used >= int(*quota) {
			return provider.OutOfCapacity("quota of %d %s instances is used up", *quota, typeName)
		}
	}
	if capacity, limited := p.config.Options.SubnetCapacity[spec.Subnet]; limited && p.room(spec.Subnet, capacity) == 0 {
		return provider.OutOfCapacity("no room for more than %d instances in subnet %s", capacity, spec.Subnet)
	}
	return nil
}
