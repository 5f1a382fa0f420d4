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
