// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/shortfall"
)

// planShardGroups returns the shard groups to write for a division of a pool. A shard group gets the
// shares of the candidates together with the size that they are shares of.
func planShardGroups(observed observation, pool *poolplan.Pool, division distribute.Division, rotation *rotationDecision, before, after machinesMode) (apply []wantedShardGroup) {
	candidates := pool.ShardCandidates(division.Sizes)
	resized := resizes(observed.shards, division.Sizes)
	for i, shard := range observed.shards {
		want := wantedShardGroup{spec: wantedSpec(observed.pool, shard.id, division.Sizes[i])}
		want.spec.Candidates = candidates[i]
		want.spec.RemoveFirst = division.RemoveFirst[i]
		if observed.pool.Spec.Rotation != nil {
			want.spec.Rotation = rotation.grant(i, &observed.shards[i])
		}
		want.spec.Replace = shard.replace()
		want.spec.Overwrites = shard.overwrites(division.Sizes[i], resized)
		switch {
		case before.on && after.on:
			// An import from before has no effect and is not worth a write.
			want.spec.Imported = shard.imported()
		case division.Uneven:
			want.spec.Imported = poolplan.Divided(observed.pool, division.Replicas)
		}
		if division.Lent != nil {
			want.spec.Loan = newLoan(observed.pool, division.Lent[i], division.Replicas)
		}
		switch {
		case shard.group == nil && !shard.synced && before.on:
			// The size is the size on the server, which is not known.
		case shard.group == nil:
			apply = append(apply, want)
		case !shard.group.DeletionTimestamp.IsZero():
			// It is created again after it was deleted.
		case !sameShardGroup(observed.pool, shard.group, want):
			want.uid, want.resourceVersion = string(shard.group.UID), shard.group.ResourceVersion
			apply = append(apply, want)
		}
	}
	if division.Moved {
		shrinkFirst(observed.distributable, apply)
	}
	return apply
}

// shrinkFirst orders the shard groups of a move: the lenders are written first, so that
// the sum of the sizes never exceeds the replicas.
func shrinkFirst(shards []distribute.Shard, wanted []wantedShardGroup) {
	for i := range wanted {
		at := slices.IndexFunc(shards, func(s distribute.Shard) bool { return s.ID == string(wanted[i].spec.Shard) })
		wanted[i].afterOthers = wanted[i].spec.Size > shards[at].Size
	}
	slices.SortStableFunc(wanted, func(a, b wantedShardGroup) int {
		switch {
		case a.afterOthers == b.afterOthers:
			return 0
		case b.afterOthers:
			return -1
		default:
			return 1
		}
	})
}

// shardRemoved reports whether a shard group of the pool is on a shard that the pool
// no longer names.
func shardRemoved(pool *v1beta1.NstanceMachinePool, group *v1beta1.NstanceShardGroup) bool {
	return !slices.Contains(pool.Spec.Shards, group.Spec.Shard)
}

func wantedSpec(pool *v1beta1.NstanceMachinePool, shard string, size int32) v1beta1.NstanceShardGroupSpec {
	return v1beta1.NstanceShardGroupSpec{
		Group:         pool.Spec.Group,
		Shard:         v1beta1.Identifier(shard),
		Size:          size,
		GroupSettings: pool.Spec.GroupSettings,

		DeletionPolicy: deletionPolicy(pool),
	}
}

// deletionPolicy returns the policy for the shard groups of a pool. The default is left
// out, so that it costs no write.
func deletionPolicy(pool *v1beta1.NstanceMachinePool) v1beta1.DeletionPolicy {
	if pool.Spec.DeletionPolicy == v1beta1.DeletionRetain {
		return v1beta1.DeletionRetain
	}
	return ""
}

// imported returns spec.imported of the shard group, nil without a shard group.
func (s *shardState) imported() *v1beta1.Division {
	if s.group == nil {
		return nil
	}
	return s.group.Spec.Imported
}

// resizes reports whether sizes, by shard, change the size of a shard group.
func resizes(shards []shardState, sizes []int32) bool {
	for i := range shards {
		if shards[i].group != nil && shards[i].group.Spec.Size != sizes[i] {
			return true
		}
	}
	return false
}

// overwrites returns spec.overwrites of a shard group that gets a size.
//
// A shard group that a restore of etcd has made older than the group on its shard is not
// sent (docs/runbooks/backup-and-restore.md#backup-and-restore). When the replicas of its pool are changed
// afterwards, the user wants the new size now, and it replaces the size on the shard.
// A size that terminates instances does not: the replicas may have been changed by an
// autoscaler that has not seen the instances of the shard. An administrator decides about it.
func (s *shardState) overwrites(size int32, resized bool) *v1beta1.GroupRevision {
	if s.group == nil || s.reported == nil || s.reported.Revision == nil {
		return nil
	}
	last := s.reported.Revision
	if last.UID != string(s.group.UID) || last.Generation <= s.group.Generation || size < s.reported.Size {
		return nil
	}
	revision := v1beta1.GroupRevision{UID: string(s.group.UID), Generation: last.Generation}
	if current := s.group.Spec.Overwrites; resized || current != nil && *current == revision {
		return &revision
	}
	return nil
}

func (c *Controller) applyShardGroups(ctx context.Context, pool *v1beta1.NstanceMachinePool, wanted []wantedShardGroup) error {
	var failed []error
	for _, want := range wanted {
		if want.afterOthers && len(failed) > 0 {
			continue
		}
		written, err := c.shardGroups.Apply(ctx, applyShardGroup(pool, want), controllers.Apply)
		if err != nil {
			failed = append(failed, fmt.Errorf("apply shard group %s of pool %s: %w",
				v1beta1.ShardGroupName(string(want.spec.Group), string(want.spec.Shard)), klog.KObj(pool), err))
			continue
		}
		c.shardGroupWrites.Record(written)
	}
	return errors.Join(failed...)
}

// wantedShardGroup is a shard group as it should be.
type wantedShardGroup struct {
	// uid and resourceVersion name the existing object. With them an apply cannot create an
	// object again that was deleted meanwhile, and a former leader cannot revert a size
	// that it has not seen.
	uid, resourceVersion string
	spec                 v1beta1.NstanceShardGroupSpec
	// afterOthers is set if the shard group is written only after all before it were.
	afterOthers bool
}

// applyShardGroup returns the fields of a shard group that this controller owns. The
// finalizer is created with the object, so that no deletion of the object leaves the
// group on the shard.
func applyShardGroup(pool *v1beta1.NstanceMachinePool, want wantedShardGroup) *applyv1beta1.NstanceShardGroupApplyConfiguration {
	spec := want.spec
	applied := applyv1beta1.NstanceShardGroup(v1beta1.ShardGroupName(string(spec.Group), string(spec.Shard)), pool.Namespace).
		WithLabels(shardGroupLabels(&spec)).
		WithFinalizers(v1beta1.FinalizerShardGroup).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1beta1.SchemeGroupVersion.String()).
			WithKind(v1beta1.PoolKind).
			WithName(pool.Name).
			WithUID(pool.UID).
			WithController(true)).
		WithSpec(applyv1beta1.NstanceShardGroupSpec().
			WithGroup(spec.Group).
			WithShard(spec.Shard).
			WithSize(spec.Size).
			WithRemoveFirst(spec.RemoveFirst...))
	applied.Spec.GroupSettingsApplyConfiguration =
		*controller.ApplyConfiguration[applyv1beta1.GroupSettingsApplyConfiguration](spec.GroupSettings)
	for _, candidate := range spec.Candidates {
		applied.Spec.WithCandidates(controller.ApplyConfiguration[applyv1beta1.ShardCandidateApplyConfiguration](candidate))
	}
	if spec.DeletionPolicy != "" {
		applied.Spec.WithDeletionPolicy(spec.DeletionPolicy)
	}
	if of := spec.Imported; of != nil {
		applied.Spec.WithImported(applyv1beta1.Division().WithReplicas(of.Replicas).WithShards(of.Shards...))
	}
	if len(spec.Replace) > 0 {
		applied.Spec.WithReplace(spec.Replace...)
	}
	if grant := spec.Rotation; grant != nil {
		applied.Spec.WithRotation(controller.ApplyConfiguration[applyv1beta1.RotationGrantApplyConfiguration](*grant))
	}
	if loan := spec.Loan; loan != nil {
		applied.Spec.WithLoan(applyv1beta1.Loan().WithLent(loan.Lent).WithReplicas(loan.Replicas).WithShards(loan.Shards...))
	}
	if revision := spec.Overwrites; revision != nil {
		applied.Spec.WithOverwrites(applyv1beta1.GroupRevision().WithUID(revision.UID).WithGeneration(revision.Generation))
	}
	if want.uid != "" {
		applied.WithUID(types.UID(want.uid)).WithResourceVersion(want.resourceVersion)
	}
	return applied
}

// sameShardGroup reports whether a shard group already has what applyShardGroup would
// write.
func sameShardGroup(pool *v1beta1.NstanceMachinePool, group *v1beta1.NstanceShardGroup, wanted wantedShardGroup) bool {
	want := wanted.spec
	if want.Overwrites == nil {
		// An earlier revision has no effect and is not worth a write.
		want.Overwrites = group.Spec.Overwrites
	}
	for name, value := range shardGroupLabels(&want) {
		if group.Labels[name] != value {
			return false
		}
	}
	return metav1.IsControlledBy(group, pool) &&
		slices.Contains(group.Finalizers, v1beta1.FinalizerShardGroup) &&
		equality.Semantic.DeepEqual(group.Spec, want)
}

func shardGroupLabels(spec *v1beta1.NstanceShardGroupSpec) map[string]string {
	return map[string]string{
		v1beta1.LabelGroup: string(spec.Group),
		v1beta1.LabelShard: string(spec.Shard),
	}
}

// newLoan returns spec.loan of a shard that lends instances, nil if it lends and borrows none.
func newLoan(pool *v1beta1.NstanceMachinePool, lent, replicas int32) *v1beta1.Loan {
	if lent == 0 {
		return nil
	}
	return &v1beta1.Loan{Lent: lent, Division: *poolplan.Divided(pool, replicas)}
}

// loans describes which instances shards have lent to others after a decision, "" for none.
func loans(observed observation, d decision) string {
	if d.sizes != nil && !d.statusOnly {
		return shortfall.Loans(observed.shortfalls(), d.lent, *observed.machinePools[0].Spec.Replicas)
	}
	lent, replicas := make([]int32, len(observed.shards)), int32(0)
	for i := range observed.shards {
		loan := poolplan.LoanOf(observed.pool, observed.shards[i].group)
		lent[i], replicas = loan.Lent, max(replicas, loan.Replicas)
	}
	return shortfall.Loans(observed.shortfalls(), lent, replicas)
}
