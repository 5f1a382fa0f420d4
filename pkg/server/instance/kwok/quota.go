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
