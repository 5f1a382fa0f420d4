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

// candidate is a configured shard as a machine of one group sees it.
type candidate struct {
	id string
	// synced: the groups of the shard are known completely.
	synced bool
	// reachable: the shard is connected now.
	reachable bool
	// hasGroup: the shard has the group, and is not deleting it.
	hasGroup bool
	// machines of the group are there already.
	machines int
}

// choose is the shard for a new machine. One that is named must be configured.
// Otherwise it is, of those that can be reached and have the group, the one with
// the fewest machines of it, and of several the first by id. There is trouble
// when there is no such shard.
func choose(named string, candidates []candidate) (string, *trouble) {
	var best *candidate
	var away, unread []string
	for i, shard := range candidates {
		switch {
		case named != "":
			if shard.id == named {
				return named, nil
			}
		case !shard.synced:
			unread = append(unread, shard.id)
		case !shard.hasGroup:
		case !shard.reachable:
			away = append(away, shard.id)
		case best == nil || cmp.Or(cmp.Compare(shard.machines, best.machines), cmp.Compare(shard.id, best.id)) < 0:
			best = &candidates[i]
		}
	}
	switch {
	case named != "":
		return "", &trouble{v1beta1.ReasonUnknownShard, fmt.Sprintf("shard %q is not configured", named)}
	case best != nil:
		return best.id, nil
	case len(unread) > 0:
		return "", &trouble{v1beta1.ReasonNotSynced,
			fmt.Sprintf("no shard that was read so far can be used; not read yet: %s", strings.Join(unread, ", "))}
	case len(away) > 0:
		return "", &trouble{v1beta1.ReasonNoShard,
			fmt.Sprintf("no shard that has the group is connected; not connected: %s", strings.Join(away, ", "))}
	default:
		return "", &trouble{v1beta1.ReasonNoShard, "no shard has the group"}
	}
}

// placement is a shard that was chosen and that the cache does not show yet.
type placement struct {
	uid          types.UID
	group, shard string
}

// place chooses the shard of a machine. Machines that come together are placed
// one after the other, each counting those before it.
func (c *Controller) place(seen observation) (string, *trouble) {
	machine := seen.machine
	group := string(machine.Spec.GroupRef.Name)
	key := cache.MetaObjectToName(machine)

	c.placing.Lock()
	defer c.placing.Unlock()
	delete(c.placements, key)
	maps.DeleteFunc(c.placements, func(key cache.ObjectName, placed placement) bool {
		cached, err := c.machineLister.Get(key.Name)
		return err != nil || cached.UID != placed.uid || cached.Status.Shard != ""
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
		candidates[i] = candidate{id: id, synced: c.groups.HasSynced(id), machines: placed[id] + c.counted(group, id)}
		candidates[i].reachable, _ = c.groups.Reachable(id)
		if has, ok := c.groups.Get(id, group); ok {
			candidates[i].hasGroup = !has.Deleting
		}
	}
	chosen, wrong := choose(cmp.Or(string(machine.Spec.Shard), seen.owner.Spec.FailureDomain), candidates)
	if wrong == nil {
		c.placements[key] = placement{machine.UID, group, chosen}
	}
	return chosen, wrong
}

// counted is the number of machines of a group on a shard that the cache shows.
func (c *Controller) counted(group, shard string) int {
	keys, err := c.machineIndex.IndexKeys(byPlacement, placementKey(group, shard))
	if err != nil {
		// Only an index that was never added gives an error.
		panic(err)
	}
	return len(keys)
}
