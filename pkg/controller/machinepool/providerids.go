// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/providerid"
)

// providerIDs returns the ids of all instances of the shard groups, sorted, because
// Cluster API compares the list in order. Each is written as on its Node, because
// Cluster API finds the Node by comparing bytes. While there is no such Node, or
// several match, an id stays written as it is in before: Cluster API deletes the Node
// of an id that is removed from the list. A new id is written as the server reports
// it.
func (c *Controller) providerIDs(before []string, groups []*v1beta1.NstanceShardGroup) (ids []string, ambiguous *problem) {
	listed := make(map[string][]string, len(before))
	for _, id := range before {
		key := providerid.Key(id)
		listed[key] = append(listed[key], id)
	}
	for _, group := range groups {
		for _, id := range group.Status.ProviderIDs {
			nodes := c.nodes.WithProviderID(id)
			if len(nodes) == 1 {
				ids = append(ids, nodes[0].Spec.ProviderID)
				continue
			}
			if len(nodes) > 1 && ambiguous == nil {
				ambiguous = &problem{v1beta1.ReasonAmbiguousProviderID,
					fmt.Sprintf("provider id %q matches %d Nodes", id, len(nodes))}
			}
			ids = append(ids, asListed(listed[providerid.Key(id)], id))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), ambiguous
}

// asListed returns the first of listed that names the same instance as id, or id.
func asListed(listed []string, id string) string {
	at := slices.IndexFunc(listed, func(other string) bool { return providerid.Match(id, other) })
	if at < 0 {
		return id
	}
	return listed[at]
}
