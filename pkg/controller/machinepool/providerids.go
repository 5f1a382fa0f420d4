// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// providerIDs are the ids of all instances of the given shard groups, sorted,
// since Cluster API compares the list in order. Each is written as on its Node,
// because Cluster API finds the Node by comparing byte for byte; before there is
// a Node, and when more than one could be meant, it is written as the server
// writes it.
func (c *Controller) providerIDs(groups []*v1beta1.NstanceShardGroup) (ids []string, ambiguous *trouble) {
	for _, group := range groups {
		for _, id := range group.Status.ProviderIDs {
			nodes := c.nodesOf(id)
			if len(nodes) == 1 {
				id = nodes[0].Spec.ProviderID
			} else if len(nodes) > 1 && ambiguous == nil {
				ambiguous = &trouble{v1beta1.ReasonAmbiguousProviderID,
					fmt.Sprintf("provider id %q matches %d Nodes", id, len(nodes))}
			}
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), ambiguous
}
