// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"encoding/json"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
)

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
	applied.Spec.GroupSettingsApplyConfiguration = applySettings(&spec.GroupSettings)
	if spec.DeletionPolicy != "" {
		applied.Spec.WithDeletionPolicy(spec.DeletionPolicy)
	}
	for name, value := range map[string]string{v1beta1.AnnotationKept: want.kept, v1beta1.AnnotationReplaces: want.replaces, v1beta1.AnnotationLent: want.lent} {
		if value != "" {
			applied.WithAnnotations(map[string]string{name: value})
		}
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
	for name, value := range shardGroupLabels(&want) {
		if group.Labels[name] != value {
			return false
		}
	}
	return metav1.IsControlledBy(group, pool) &&
		slices.Contains(group.Finalizers, v1beta1.FinalizerShardGroup) &&
		group.Annotations[v1beta1.AnnotationKept] == wanted.kept &&
		group.Annotations[v1beta1.AnnotationLent] == wanted.lent &&
		// An annotation for an earlier revision has no effect and is not worth a write.
		(wanted.replaces == "" || group.Annotations[v1beta1.AnnotationReplaces] == wanted.replaces) &&
		equality.Semantic.DeepEqual(group.Spec, want)
}

// applySettings returns settings as an apply configuration. Both have the same JSON,
// so that a new setting needs no change here; empty settings are left out.
func applySettings(settings *v1beta1.GroupSettings) applyv1beta1.GroupSettingsApplyConfiguration {
	var applied applyv1beta1.GroupSettingsApplyConfiguration
	data, err := json.Marshal(settings)
	if err == nil {
		err = json.Unmarshal(data, &applied)
	}
	if err != nil {
		// Strings, lists and maps of strings have no error.
		panic(err)
	}
	return applied
}

func shardGroupLabels(spec *v1beta1.NstanceShardGroupSpec) map[string]string {
	return map[string]string{
		v1beta1.LabelGroup: string(spec.Group),
		v1beta1.LabelShard: string(spec.Shard),
	}
}

// applyPool returns the fields of a pool that this controller owns, without the
// status: the finalizer, one field of the spec, and during the deletion the owners.
func applyPool(observed observation, ids []string) *applyv1beta1.NstanceMachinePoolApplyConfiguration {
	pool := observed.pool
	applied := applyv1beta1.NstanceMachinePool(pool.Name, pool.Namespace).WithUID(pool.UID).
		WithFinalizers(v1beta1.FinalizerMachinePool).
		WithSpec(applyv1beta1.NstanceMachinePoolSpec().WithProviderIDList(ids...))
	if pool.DeletionTimestamp.IsZero() {
		return applied
	}
	for _, machinePool := range observed.machinePools {
		applied.WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(clusterv1.GroupVersion.String()).
			WithKind("MachinePool").
			WithName(machinePool.Name).
			WithUID(machinePool.UID))
	}
	return applied
}

// applyStatus returns the fields of the status that this controller owns.
func applyStatus(pool *v1beta1.NstanceMachinePool, status v1beta1.NstanceMachinePoolStatus) *applyv1beta1.NstanceMachinePoolApplyConfiguration {
	applied := applyv1beta1.NstanceMachinePoolStatus().
		WithShards(applyv1beta1.ShardsSummary().WithTotal(status.Shards.Total).WithReachable(status.Shards.Reachable)).
		WithSubnets(status.Subnets...).
		WithStaticShards(status.StaticShards...).
		WithObservedGeneration(status.ObservedGeneration).
		WithConditions(controller.ApplyConditions(status.Conditions)...)
	applied.Ready = status.Ready
	applied.DesiredReplicas = status.DesiredReplicas
	applied.Replicas = status.Replicas
	applied.Draining = status.Draining
	applied.DrainsBlocked = status.DrainsBlocked
	applied.IsStatic = status.IsStatic
	if status.Initialization.Provisioned != nil {
		applied.WithInitialization(applyv1beta1.NstanceMachinePoolInitialization().
			WithProvisioned(*status.Initialization.Provisioned))
	}
	if status.Template != "" {
		applied.WithTemplate(status.Template)
	}
	if status.InfrastructureMachineKind != "" {
		// Cluster API would take an empty kind for a kind.
		applied.WithInfrastructureMachineKind(status.InfrastructureMachineKind)
	}
	if status.Capacity != nil {
		applied.WithCapacity(status.Capacity)
	}
	if status.NodeInfo != (v1beta1.NodeInfo{}) {
		info := applyv1beta1.NodeInfo()
		if status.NodeInfo.Architecture != "" {
			info.WithArchitecture(status.NodeInfo.Architecture)
		}
		if status.NodeInfo.OperatingSystem != "" {
			info.WithOperatingSystem(status.NodeInfo.OperatingSystem)
		}
		applied.WithNodeInfo(info)
	}
	return applyv1beta1.NstanceMachinePool(pool.Name, pool.Namespace).WithUID(pool.UID).WithStatus(applied)
}
