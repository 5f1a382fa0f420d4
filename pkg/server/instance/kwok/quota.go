// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import "nstance.dev/operator/pkg/server/instance"

// count returns how many instances are pending or running: the Nodes that have
// value in an index, and the orders for which is tells so. Those on their way out
// have made room already. It is called with mu held.
func (p *Provider) count(index, value string, is func(instance.Spec) bool) int {
	count := 0
	for _, node := range p.nodesBy(index, value) {
		// What is ordered is counted below.
		if _, ordered := p.orders[node.Name]; !ordered && fromNode(node).State != instance.Terminating {
			count++
		}
	}
	for _, order := range p.orders {
		if !order.end && is(order.spec) {
			count++
		}
	}
	return count
}

// room returns how many more instances fit into a subnet of a capacity. There may
// be too many: a capacity can be lowered. It is called with mu held.
func (p *Provider) room(subnet string, capacity int32) int {
	taken := p.count(bySubnet, subnet, func(spec instance.Spec) bool { return spec.Subnet == subnet })
	return max(0, int(capacity)-taken)
}
