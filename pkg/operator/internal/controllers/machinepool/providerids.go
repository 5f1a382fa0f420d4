// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
)

// providerIDs returns the ids of all instances of the shard groups, sorted, because
// Cluster API compares the list in order. Each is written as on its Node, because
// Cluster API finds the Node by comparing bytes. While there is no such Node, or
// several match, an id stays written as it is in before. A new id is written as the
// server reports it.
//
// Cluster API deletes the Node of an id that is removed from the list. If the groups
// are not complete, no id is removed.
func (c *Controller) providerIDs(before []string, groups []*v1beta1.NstanceShardGroup, complete bool) (ids []string, ambiguous *problem) {
	listed := byKey(before)
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
	if !complete {
		reported := byKey(ids)
		for _, id := range before {
			ids = append(ids, asListed(reported[providerid.Key(id)], id))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), ambiguous
}

// allReported reports whether every shard of the pool has a shard group that has
// reported its instances. A new shard group has not, and neither has one that a backup
// has restored without its status. While the pool is being deleted, a shard without a
// shard group has no instances.
func allReported(observed observation) bool {
	deleting := !observed.pool.DeletionTimestamp.IsZero()
	for _, shard := range observed.shards {
		if shard.group == nil && !deleting || shard.group != nil && shard.group.Status.Replicas == nil {
			return false
		}
	}
	return true
}

// byKey groups provider ids that may name the same instance.
func byKey(ids []string) map[string][]string {
	grouped := make(map[string][]string, len(ids))
	for _, id := range ids {
		key := providerid.Key(id)
		grouped[key] = append(grouped[key], id)
	}
	return grouped
}

// asListed returns the first of listed that names the same instance as id, or id.
func asListed(listed []string, id string) string {
	at := slices.IndexFunc(listed, func(other string) bool { return providerid.Match(id, other) })
	if at < 0 {
		return id
	}
	return listed[at]
}
