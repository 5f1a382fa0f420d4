// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// candidate is a configured shard as it is for one group.
type candidate struct {
	id string
	// synced: the groups of the shard are known.
	synced bool
	// reachable: the shard is connected.
	reachable bool
	// hasGroup: the shard has the group, and is not deleting it.
	hasGroup bool
	// declined: the shard has declined the request, and would do so again.
	declined bool
	// nstanceMachines is the number of NstanceMachines of the group on the shard.
	nstanceMachines int
}

// choose returns the shard for a new NstanceMachine. A shard that is requested must
// be configured. Otherwise the shard is connected, has the group, and has the fewest
// NstanceMachines of it; of several, the first by id. Without such a shard there is a
// problem.
func choose(requested string, candidates []candidate) (string, *problem) {
	var best *candidate
	var disconnected, notSynced []string
	for i, shard := range candidates {
		switch {
		case requested != "":
			if shard.id == requested {
				return requested, nil
			}
		case !shard.synced:
			notSynced = append(notSynced, shard.id)
		case !shard.hasGroup, shard.declined:
		case !shard.reachable:
			disconnected = append(disconnected, shard.id)
		case best == nil || cmp.Or(cmp.Compare(shard.nstanceMachines, best.nstanceMachines), cmp.Compare(shard.id, best.id)) < 0:
			best = &candidates[i]
		}
	}
	switch {
	case requested != "":
		return "", &problem{v1beta1.ReasonUnknownShard, fmt.Sprintf("shard %q is not configured", requested)}
	case best != nil:
		return best.id, nil
	case len(notSynced) > 0:
		return "", &problem{v1beta1.ReasonNotSynced,
			fmt.Sprintf("no shard whose groups are known can be used; not known yet: %s", strings.Join(notSynced, ", "))}
	case len(disconnected) > 0:
		return "", &problem{v1beta1.ReasonNoShard,
			fmt.Sprintf("no shard that has the group is connected; not connected: %s", strings.Join(disconnected, ", "))}
	default:
		return "", &problem{v1beta1.ReasonNoShard, "no shard has the group"}
	}
}

// placement is a choice that the cache does not show yet.
type placement struct {
	uid          types.UID
	group, shard string
	// from is the shard that the cache shows, "" for none.
	from string
}

// place chooses the shard of an NstanceMachine. It runs for one at a time, and
// counts the placements before, so that many new NstanceMachines are spread evenly.
// declined are the rejections by shards that are not chosen.
func (c *Controller) place(observed observation, declined map[string]rejection) (string, *problem) {
	nstanceMachine := observed.nstanceMachine
	group := string(nstanceMachine.Spec.GroupRef.Name)
	key := cache.MetaObjectToName(nstanceMachine)

	c.placementsMu.Lock()
	defer c.placementsMu.Unlock()
	delete(c.placements, key)
	maps.DeleteFunc(c.placements, func(key cache.ObjectName, placed placement) bool {
		cached, err := c.nstanceMachineLister.Get(key.Name)
		return err != nil || cached.UID != placed.uid || cached.Status.Shard != placed.from
	})
	placed := map[string]int{}
	for _, other := range c.placements {
		if other.group == group {
			placed[other.shard]++
		}
	}
	ids := c.shards.Shards()
	candidates := make([]candidate, len(ids))
	for i, id := range ids {
		candidates[i] = candidate{id: id, synced: c.groups.HasSynced(id), nstanceMachines: placed[id] + c.countPlaced(group, id)}
		candidates[i].reachable, _ = c.groups.Reachable(id)
		if has, ok := c.groups.Get(id, group); ok {
			candidates[i].hasGroup = !has.Deleting
			candidates[i].declined = declinedBy(declined, id, has.ETag, observed)
		}
	}
	chosen, blocked := choose(cmp.Or(string(nstanceMachine.Spec.Shard), observed.machine.Spec.FailureDomain), candidates)
	if blocked == nil {
		c.placements[key] = placement{uid: nstanceMachine.UID, group: group, shard: chosen, from: nstanceMachine.Status.Shard}
	}
	return chosen, blocked
}

// countPlaced returns the number of NstanceMachines of a group on a shard in the
// cache.
func (c *Controller) countPlaced(group, shard string) int {
	keys, err := c.nstanceMachineIndex.IndexKeys(byPlacement, placementKey(group, shard))
	if err != nil {
		// Only an index that was never added returns an error.
		panic(err)
	}
	return len(keys)
}
