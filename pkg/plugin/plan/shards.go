// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plan

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/plugin/objects"
)

// input returns what the operator divides, as far as objects have it.
func (b *builder) input() poolplan.Pool {
	machines := b.pool.Status.InfrastructureMachineKind != ""
	input := poolplan.Pool{NstanceMachinePool: b.pool, MachinePool: b.pool.Name, Replicas: b.plan.NextReplicas, Machines: machines}
	if machinePool := b.MachinePoolOf(b.pool); machinePool != nil {
		input.MachinePool = machinePool.Name
	}
	groups := b.ShardGroupsOf(b.pool)
	for _, id := range b.pool.Spec.Shards {
		var group *v1beta1.NstanceShardGroup
		if at := slices.IndexFunc(groups, func(group *v1beta1.NstanceShardGroup) bool { return group.Spec.Shard == id }); at >= 0 {
			group = groups[at]
		}
		input.Groups = append(input.Groups, group)
		input.Shards = append(input.Shards, b.distributable(string(id), group, machines))
	}
	if machines {
		input.Candidates = b.candidates()
	}
	return input
}

// distributable returns a shard as its shard group and the NstanceMachines describe it. group is nil
// if the pool has no shard group there: then the shard is taken for one that has no instances.
func (b *builder) distributable(id string, group *v1beta1.NstanceShardGroup, machines bool) distribute.Shard {
	if group == nil {
		shard := poolplan.NewShard(b.pool, id, nil, 0, 0)
		shard.Synced, shard.Stock.Usable = true, true
		return shard
	}
	reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable)
	configured := reachable == nil || reachable.Reason != v1beta1.ReasonUnknownShard
	least := int32(0)
	if configured {
		least = ptr.Deref(group.Status.MinReplicas, 0)
	}
	shard := poolplan.NewShard(b.pool, id, group, 0, least)
	shard.Fixed, shard.Synced = !configured, group.Status.Replicas != nil
	shard.Stock.Usable = reachable != nil && reachable.Status == metav1.ConditionTrue
	if !shard.Synced {
		return shard
	}
	shard.Reported = &distribute.Group{Size: shard.Size, ListsInstances: true, Running: *group.Status.Replicas}
	if machines {
		shard.Reported.Instances = b.instances(group)
		return shard
	}
	for _, next := range group.Status.DeletionOrder {
		shard.Reported.Instances = append(shard.Reported.Instances, distribute.Instance{ID: next.Instance})
	}
	slices.SortFunc(shard.Reported.Instances, byID)
	return shard
}

// byID orders instances by age, because their ids do.
func byID(a, b distribute.Instance) int { return cmp.Compare(a.ID, b.ID) }

// instances returns the instances of the NstanceMachines of a shard group, the oldest first.
func (b *builder) instances(group *v1beta1.NstanceShardGroup) []distribute.Instance {
	var found []distribute.Instance
	for _, member := range b.MembersOf(b.pool) {
		if member.Spec.Shard != group.Spec.Shard {
			continue
		}
		id := objects.ProviderIDOf(member)
		runs := slices.ContainsFunc(group.Status.ProviderIDs, func(reported string) bool { return providerid.Match(reported, id) })
		found = append(found, distribute.Instance{
			ID: member.Name, Pending: !runs, Uncreated: id == "",
			Terminating: meta.IsStatusConditionTrue(member.Status.Conditions, v1beta1.ConditionServerDeleted),
		})
	}
	slices.SortFunc(found, byID)
	return found
}

// candidates returns the deletion candidates of the pool.
func (b *builder) candidates() []distribute.Candidate {
	members := b.MembersOf(b.pool)
	var found []distribute.Candidate
	for i := range b.Machines.Items {
		machine := &b.Machines.Items[i]
		owned, ok := poolplan.MayBeCandidate(machine)
		at := slices.IndexFunc(members, func(member *v1beta1.NstanceMachine) bool {
			return member.Name == owned && member.Namespace == machine.Namespace
		})
		if !ok || at < 0 {
			continue
		}
		if candidate, exists := poolplan.NewCandidate(machine, members[at]); exists {
			found = append(found, candidate)
		}
	}
	return found
}

// planned is the decision for a shard.
type planned struct {
	group       *v1beta1.NstanceShardGroup
	shard       *distribute.Shard
	machines    bool
	next        int32
	removeFirst []string
}

// shard returns the part of the plan on a shard.
func (b *builder) shard(p planned) Shard {
	result := Shard{Name: p.shard.ID, Size: p.shard.Size, Next: p.next, RemoveFirst: p.removeFirst, Leaves: []Instance{}, Exact: true}
	if p.group == nil {
		return result
	}
	if reachable := meta.FindStatusCondition(p.group.Status.Conditions, v1beta1.ConditionShardReachable); reachable == nil || reachable.Status != metav1.ConditionTrue {
		result.Exact = false
		if last := p.group.Status.LastSyncTime; last != nil {
			result.ReportedAt = last.Time
		}
	}
	reported := ptr.Deref(p.group.Status.Replicas, 0)
	pending := p.pending(reported)
	leave := int(reported) + len(pending) - int(p.next)
	leaving, exact := distribute.Leaving(p.order(pending), p.removeFirst, leave)
	if b.plan.changesInstances() || b.plan.changesCandidates() {
		// A deletion candidate that is replaced counts as such for the shard, and the surplus
		// instances of the last candidate go first.
		exact = exact && (leave <= len(p.removeFirst) || len(p.removeFirst) == 0)
	}
	result.Exact = result.Exact && (leave <= 0 || exact && p.settled(reported))
	for _, next := range leaving {
		if next.ID == "" {
			result.NotRunning++
			continue
		}
		result.Leaves = append(result.Leaves, b.instance(p, next))
	}
	result.Selected = int32(max(leave-len(leaving), 0))
	for _, entry := range p.group.Status.DeletionOrder {
		leaves := slices.ContainsFunc(leaving, func(next distribute.Ordered) bool { return next.ID == entry.Instance })
		if slices.Contains(replacing, entry.Reason) && !leaves {
			result.Replaced = append(result.Replaced, b.instance(p, distribute.Ordered{ID: entry.Instance, Reason: entry.Reason}))
		}
	}
	return result
}

// replacing are the reasons for which a shard replaces an instance. A shard of another version may
// have more, which are shown for the instances that leave.
var replacing = []string{"replaced", "config-drift", "rotated", "expired", "unhealthy", "spot"}

// settled reports whether a shard is known to have no instances but those that its size counts: an
// instance that is replaced may have a replacement that does not run yet, and is in no object.
func (p *planned) settled(reported int32) bool {
	status := &p.group.Status
	quiet := ptr.Deref(status.DrainingReplicas, 0) == 0 && status.ObservedGeneration == p.group.Generation &&
		!slices.ContainsFunc(status.DeletionOrder, func(next v1beta1.NextDeletion) bool { return next.Reason != "" })
	if p.machines {
		return quiet && int(p.shard.Size) == len(p.shard.Reported.Instances)
	}
	return quiet && p.shard.Size == reported
}

// pending returns the instances that do not run yet, the oldest first. The objects of a pool without
// Machines do not have them, so they are the instances that are missing, without an id.
func (p *planned) pending(reported int32) []distribute.Ordered {
	if !p.machines {
		return make([]distribute.Ordered, max(p.shard.Size-reported, 0))
	}
	var pending []distribute.Ordered
	if p.shard.Reported != nil {
		for _, instance := range p.shard.Reported.Instances {
			if instance.Pending && !instance.Terminating {
				pending = append(pending, distribute.Ordered{ID: instance.ID})
			}
		}
	}
	return pending
}

// order returns the instances of a shard in the order in which it deletes them: instances that it
// replaces, instances that do not run yet, and the others, the oldest first.
func (p *planned) order(pending []distribute.Ordered) []distribute.Ordered {
	var outdated, others []distribute.Ordered
	for _, next := range p.group.Status.DeletionOrder {
		instance := distribute.Ordered{ID: next.Instance, Reason: next.Reason}
		if next.Reason != "" {
			outdated = append(outdated, instance)
		} else {
			others = append(others, instance)
		}
	}
	return slices.Concat(outdated, pending, others)
}

// instance returns an instance with its Node, and why it leaves.
func (b *builder) instance(p planned, next distribute.Ordered) Instance {
	result := Instance{Name: next.ID, Reason: next.Reason}
	for _, entry := range p.group.Status.DeletionOrder {
		if entry.Instance == next.ID {
			result.ProviderID = entry.ProviderID
		}
	}
	if nodes := b.nodes.WithProviderID(result.ProviderID); result.ProviderID != "" && len(nodes) == 1 {
		result.Node = nodes[0].Name
	}
	switch {
	case slices.Contains(p.removeFirst, next.ID) && result.ProviderID != "":
		result.Reason = ReasonCandidate
	case result.ProviderID == "":
		result.Reason = ReasonNotRunning
	}
	result.Reason = cmp.Or(result.Reason, ReasonOldest)
	return result
}

// notes returns what the plan does not know.
func (b *builder) notes() []string {
	var notes []string
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	for i, shard := range b.plan.Shards {
		if i < len(b.pool.Spec.Shards) && !slices.ContainsFunc(b.ShardGroupsOf(b.pool), func(group *v1beta1.NstanceShardGroup) bool { return string(group.Spec.Shard) == shard.Name }) {
			add("Shard %s: the pool has no shard group there yet. If its server has a group %s, the operator imports its size.", shard.Name, b.pool.Spec.Group)
		}
		if !shard.ReportedAt.IsZero() {
			add("Shard %s is not connected: the plan has what it reported last.", shard.Name)
		}
		if shard.Selected > 0 {
			add("Shard %s selects %d of the instances that leave. It does not report which.", shard.Name, shard.Selected)
		}
		if shard.NotRunning > 0 {
			add("Shard %s: up to %d of the instances that leave do not run yet. They leave before instances that run.", shard.Name, shard.NotRunning)
		}
		if !shard.Exact && shard.ReportedAt.IsZero() && shard.Selected == 0 && shard.NotRunning == 0 {
			add("Shard %s: instances are being created, replaced or deleted, so that it may delete others.", shard.Name)
		}
	}
	for _, group := range b.ShardGroupsOf(b.pool) {
		if poolplan.LoanOf(b.pool, group).Lent != 0 {
			add("Shards have lent instances. Which shards get more depends on their capacity, which the plan does not know.")
			break
		}
	}
	return notes
}
