// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/distribute"
	"nstance.dev/operator/pkg/shard"
)

// shrinks tells whether instances of a pool with Machines are going to be too
// many, so that it matters which of them were chosen to go.
func shrinks(seen observation) bool {
	if seen.paused != "" || !seen.pool.DeletionTimestamp.IsZero() || !hasMachines(seen.pool) ||
		len(seen.machinePools) != 1 || hindrance(seen) != nil {
		return false
	}
	return *seen.machinePools[0].Spec.Replicas < sum(presentSizes(seen.shards))
}

// look asks the API server who was chosen to go, because the caches of MachinePools
// and Machines may be at different times: whoever chooses annotates the Machine
// first and then lowers the replicas, so the Machines are read after the replicas.
// It returns false when a cache is behind in a way that changes more than that.
func (c *Controller) look(ctx context.Context, seen *observation) (current bool, err error) {
	name := seen.machinePools[0].Name
	machinePool, err := c.machinePools.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read MachinePool %s: %w", c.key(name), err)
	}
	if machinePool.UID != seen.machinePools[0].UID || machinePool.Spec.Replicas == nil || controller.PausedBy(nil, machinePool) != "" {
		return false, nil
	}
	// What was chosen before is in the shard groups.
	for _, shard := range seen.shards {
		if current, err := c.shows(ctx, seen.pool, shard); err != nil || !current {
			return false, err
		}
	}
	machines, err := c.machines.List(ctx, metav1.ListOptions{LabelSelector: labels.Set{
		clusterv1.ClusterNameLabel:     machinePool.Spec.ClusterName,
		clusterv1.MachinePoolNameLabel: capi.LabelValue(machinePool.Name),
	}.String()})
	if err != nil {
		return false, fmt.Errorf("list the Machines of MachinePool %s: %w", klog.KObj(machinePool), err)
	}
	wishes, current, err := c.wishes(ctx, seen.pool, machines.Items)
	if err != nil || !current {
		return false, err
	}
	seen.machinePools = []*clusterv1.MachinePool{machinePool}
	seen.victims = choose(wishes, seen.shards)
	return true, nil
}

// shows tells whether the cache has the spec that the API server has of a shard
// group. It is asked for by name: a label that somebody took away is put back by
// the sync that follows.
func (c *Controller) shows(ctx context.Context, pool *v1beta1.NstanceMachinePool, shard shardState) (bool, error) {
	name := v1beta1.ShardGroupName(string(pool.Spec.Group), shard.id)
	group, err := c.shardGroups.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return shard.group == nil, nil
	case err != nil:
		return false, fmt.Errorf("read shard group %s of pool %s: %w", name, klog.KObj(pool), err)
	}
	return shard.group != nil && group.UID == shard.group.UID && group.Generation == shard.group.Generation, nil
}

// wish is that an instance goes.
type wish struct {
	id, shard string
	// annotated: its Machine is, with the time at. Else it is being deleted.
	annotated bool
	at        string
}

// wishes are those of the Machines of a pool. It returns false when the cache does
// not have what the API server has of one.
func (c *Controller) wishes(ctx context.Context, pool *v1beta1.NstanceMachinePool, machines []clusterv1.Machine) (wishes []wish, current bool, err error) {
	for _, machine := range machines {
		id := capi.NstanceMachineOf(&machine)
		at, annotated := machine.Annotations[clusterv1.DeleteMachineAnnotation]
		deleting := !machine.DeletionTimestamp.IsZero()
		if id == "" || !annotated && !deleting {
			continue
		}
		member, err := c.memberLister.Get(id)
		if apierrors.IsNotFound(err) {
			_, err = c.members.Get(ctx, id, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				// Its instance has gone already.
				continue
			}
			if err == nil {
				return nil, false, nil
			}
		}
		if err != nil {
			return nil, false, fmt.Errorf("read the NstanceMachine of Machine %s: %w", klog.KObj(&machine), err)
		}
		if owner := controller.PoolOf(member); owner == nil || owner.UID != pool.UID {
			// Somebody has labelled a Machine that is none of the pool's.
			continue
		}
		if meta.IsStatusConditionTrue(member.Status.Conditions, v1beta1.ConditionServerDeleted) {
			// Its instance has ended, whether or not its shard can be asked now.
			continue
		}
		wishes = append(wishes, wish{id, string(member.Spec.Shard), annotated, at})
	}
	return wishes, true, nil
}

// choose returns the instances that are to go before others, in the order in which
// they are: those whose Machine was annotated for that (CAPI contract), the earliest
// first, and then those whose Machine is being deleted. Who annotates has drained
// the Node and lowers the replicas for it; who deletes a Machine may want another
// one in its place. Those that were chosen for an earlier decrease are left out, for
// that is done. So are those that have ended: their place was given to others.
func choose(wishes []wish, shards []shardState) []distribute.Victim {
	wishes = slices.Clone(wishes)
	slices.SortFunc(wishes, func(a, b wish) int {
		switch {
		case a.annotated && !b.annotated:
			return -1
		case !a.annotated && b.annotated:
			return 1
		}
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id))
	})
	var victims []distribute.Victim
	// A server refuses an id that is named twice, as of one with two Machines.
	wanted := sets.New[string]()
	for _, wish := range wishes {
		on := slices.IndexFunc(shards, func(shard shardState) bool { return shard.id == wish.shard })
		if on >= 0 && !wanted.Has(wish.id) && !shards[on].chosen(wish.id) && !shards[on].ended(wish.id) {
			victims = append(victims, distribute.Victim{Shard: on, ID: wish.id})
		}
		wanted.Insert(wish.id)
	}
	return victims
}

// chosen tells whether an instance was chosen to go for an earlier decrease.
func (s *shardState) chosen(id string) bool {
	return s.group != nil && slices.Contains(s.group.Spec.RemoveFirst, id)
}

// ended tells whether the server is known to have ended an instance, or to be about
// to.
func (s *shardState) ended(id string) bool {
	if !s.synced || s.reported == nil || !s.reported.ListsInstances {
		return false
	}
	at := slices.IndexFunc(s.reported.Instances, func(instance shard.Instance) bool { return instance.ID == id })
	if at < 0 {
		return true
	}
	return s.reported.Instances[at].State.Ends()
}

// removeFirst are the instances that are to go first on a shard: with another size
// those newly chosen, and those chosen before that have not gone. A growth takes
// back the choice of those that are not too many any more. One whose Machine is
// being deleted all the same counts for the next decrease then.
func (s *shardState) removeFirst(size int32, chosen []string) []string {
	if s.group == nil {
		return chosen
	}
	before := s.group.Spec.RemoveFirst
	if s.group.Spec.Size == size {
		return before
	}
	kept := slices.DeleteFunc(slices.Clone(before), s.ended)
	if surplus, known := s.surplus(size); known && size > s.group.Spec.Size {
		kept = kept[:min(len(kept), surplus)]
	}
	return append(kept, chosen...)
}

// surplus is how many instances of a shard are too many for a size, if the shard
// has told which it has.
func (s *shardState) surplus(size int32) (surplus int, known bool) {
	if !s.synced || s.reported == nil || !s.reported.ListsInstances {
		return 0, false
	}
	for _, instance := range s.reported.Instances {
		if !instance.State.Ends() {
			surplus++
		}
	}
	return max(surplus-int(size), 0), true
}
