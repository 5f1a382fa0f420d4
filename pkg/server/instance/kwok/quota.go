// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import "nstance.dev/operator/pkg/server/instance"

// count returns how many instances of a type are pending or running. Those on
// their way out have made room already. It is called with mu held.
func (p *Provider) count(typeName string) int {
	count := 0
	for _, node := range p.nodesBy(byType, typeName) {
		// What is ordered is counted below.
		if _, ordered := p.orders[node.Name]; !ordered && fromNode(node).State != instance.Terminating {
			count++
		}
	}
	for _, order := range p.orders {
		if !order.end && order.spec.Type.Name == typeName {
			count++
		}
	}
	return count
}
