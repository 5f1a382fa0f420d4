// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package poolplan decides how the replicas of a pool are divided, from its objects and from what
// is known of its shards. Controller machinepool writes the decision, and the plugin of kubectl
// shows it before: both get it from here.
package poolplan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/distribute"
)

// Pool is what the division of the replicas of a pool depends on.
type Pool struct {
	*v1beta1.NstanceMachinePool
	// MachinePool is the name of the MachinePool, for messages.
	MachinePool string
	Replicas    int32
	// Groups and Shards are in the order of spec.shards. A shard without a shard group has nil.
	Groups []*v1beta1.NstanceShardGroup
	Shards []distribute.Shard
	// Machines reports whether the instances have Machines.
	Machines bool
	// Candidates are the deletion candidates of a pool with Machines.
	Candidates []distribute.Candidate
	// MayMove is set when the last move for a shortfall is long enough ago.
	MayMove bool
	// Limits delay a scale-down, nil if it is done at once.
	Limits *distribute.Limits
}

// Divide divides the replicas among the shards.
func (p *Pool) Divide() distribute.Division {
	return distribute.Divide(distribute.Pool{
		Shards:     p.Shards,
		Replicas:   p.Replicas,
		Machines:   p.Machines,
		Candidates: p.Candidates,
		Imported:   p.HasImportedSizes(),
		MayMove:    p.MayMove && Moves(p.NstanceMachinePool),
		Limits:     p.Limits,
	})
}

// BelowMinimum returns why the replicas cannot be divided without a shard below its minimum, ""
// if they can. A scale-down of a pool with Machines removes the instances that were selected for
// it and no others, so it waits if the shard of such an instance is at its minimum.
func (p *Pool) BelowMinimum() string {
	least, shards := int32(0), []string(nil)
	for _, shard := range p.Shards {
		if shard.Min > 0 {
			least += shard.Min
			shards = append(shards, fmt.Sprintf("%s %d", shard.ID, shard.Min))
		}
	}
	if least > max(p.Replicas, 0) {
		return fmt.Sprintf("the shards keep at least %d instances (%s), and MachinePool %q has %d replicas; the sizes stay",
			least, strings.Join(shards, ", "), p.MachinePool, p.Replicas)
	}
	kept := distribute.Kept(p.Shards, p.Replicas, p.Candidates)
	if kept == nil {
		return ""
	}
	at := slices.IndexFunc(p.Shards, func(shard distribute.Shard) bool { return shard.ID == kept.Shard })
	return fmt.Sprintf("instance %s is to be removed, and shard %s keeps at least %d instances; the sizes stay",
		kept.ID, kept.Shard, p.Shards[at].Min)
}

// HasImportedSizes reports whether the sizes of all shards were imported for the replicas: the
// sizes on the servers, or the sizes of shard groups with spec.imported.
func (p *Pool) HasImportedSizes() bool {
	for i := range p.Shards {
		group := p.Groups[i]
		switch {
		case group == nil && p.Shards[i].Synced:
		case group == nil || group.Spec.Imported == nil || group.Spec.Imported.Replicas != p.Replicas ||
			!sameShards(group.Spec.Imported.Shards, p.Spec.Shards):
			return false
		}
	}
	return true
}

// Divided returns the division of replicas among the shards of a pool.
func Divided(pool *v1beta1.NstanceMachinePool, replicas int32) *v1beta1.Division {
	return &v1beta1.Division{Replicas: replicas, Shards: pool.Spec.Shards}
}

// LoanOf returns spec.loan of a shard group, which may be nil. It is zero if the shard group has
// no loan, or a loan among other shards: then the shares are divided among the present shards.
func LoanOf(pool *v1beta1.NstanceMachinePool, group *v1beta1.NstanceShardGroup) v1beta1.Loan {
	if group == nil || group.Spec.Loan == nil || !sameShards(group.Spec.Loan.Shards, pool.Spec.Shards) {
		return v1beta1.Loan{}
	}
	return *group.Spec.Loan
}

// sameShards reports whether two lists name the same shards, in any order.
func sameShards(a, b []v1beta1.Identifier) bool { return sets.New(a...).Equal(sets.New(b...)) }

// Moves reports whether the instances that a shard cannot create move to other shards.
func Moves(pool *v1beta1.NstanceMachinePool) bool {
	return pool.Spec.Shortfall != nil && pool.Spec.Shortfall.Policy == v1beta1.ShortfallMove
}

// NewShard returns a shard with what its shard group has. group is nil if the pool has no shard
// group there, and size is the size of the shard then. least is the size that the server keeps at
// least, whatever was written before it was raised.
func NewShard(pool *v1beta1.NstanceMachinePool, id string, group *v1beta1.NstanceShardGroup, size, least int32) distribute.Shard {
	shard := distribute.Shard{ID: id, Size: size, Min: least, HasShardGroup: group != nil}
	if group != nil {
		loan := LoanOf(pool, group)
		shard.Size, shard.RemoveFirst = group.Spec.Size, group.Spec.RemoveFirst
		shard.Stock.Lent, shard.Stock.LentOf = loan.Lent, loan.Replicas
	}
	shard.Size = max(shard.Size, least)
	return shard
}

// MayBeCandidate reports whether a Machine is a deletion candidate if its instance exists: it is
// annotated, or is being deleted. owned is the name of its NstanceMachine, which is the id of the
// instance.
func MayBeCandidate(machine *clusterv1.Machine) (owned string, ok bool) {
	owned = capi.NstanceMachineOf(machine)
	_, annotated := machine.Annotations[clusterv1.DeleteMachineAnnotation]
	return owned, owned != "" && (annotated || !machine.DeletionTimestamp.IsZero())
}

// NewCandidate returns the deletion candidate of a Machine for which MayBeCandidate, and false if
// its instance was terminated, even if its shard cannot be queried now.
func NewCandidate(machine *clusterv1.Machine, owned *v1beta1.NstanceMachine) (distribute.Candidate, bool) {
	annotation, annotated := machine.Annotations[clusterv1.DeleteMachineAnnotation]
	return distribute.Candidate{ID: owned.Name, Shard: string(owned.Spec.Shard), Annotated: annotated, Annotation: annotation},
		!meta.IsStatusConditionTrue(owned.Status.Conditions, v1beta1.ConditionServerDeleted)
}

// AtOnce returns how many of a number of instances the guards of a pool let a scale-down remove at
// once, math.MaxInt32 without a limit.
func AtOnce(guards *v1beta1.ScaleDownGuards, instances int32) int32 {
	if guards == nil || guards.MaxInFlight == nil {
		return math.MaxInt32
	}
	scaled, err := intstr.GetScaledValueFromIntOrPercent(guards.MaxInFlight, int(instances), false)
	if err != nil {
		// The CRD has a rule against it.
		scaled = 1
	}
	return int32(max(scaled, 1))
}
