// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import "k8s.io/apimachinery/pkg/util/intstr"

// ScaleDownGuards limit the scale-downs of a pool: instances are removed in steps, and a
// step is made only while every guard allows it. Deletion candidates and instances that do
// not run yet pass every guard (docs/operations.md#guards-for-scale-down).
type ScaleDownGuards struct {
	// maxUnavailable is how many instances of the pool may be removed at once, as a number
	// or as a percentage of its instances, which is rounded down and is at least 1. An
	// instance that is being drained or terminated counts until its shard no longer
	// reports it. Without a value there is no limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="must be a number from 1 on, or a percentage from 1% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// minReadySeconds is for how long the Node of every remaining instance must have been
	// Ready before a step. A Node that cannot be found is not ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// stabilizationSeconds is for how long the replicas must have been at or below a
	// number before the pool is scaled down to it. The time starts again with a new leader
	// of the operator.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	StabilizationSeconds int32 `json:"stabilizationSeconds,omitempty"`
	// pauseWhile are states of the pool in which no step is made.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=3
	PauseWhile []ScaleDownPause `json:"pauseWhile,omitempty"`
}

// ScaleDownPause is a state of a pool in which it is not scaled down.
//
// +kubebuilder:validation:Enum=ShardUnreachable;DrainBlocked;InstanceNotReady
type ScaleDownPause string

// States in which a pool is not scaled down.
const (
	// PauseWhileShardUnreachable: a shard of the pool is not connected.
	PauseWhileShardUnreachable ScaleDownPause = "ShardUnreachable"
	// PauseWhileDrainBlocked: the drain of an instance of the pool is blocked.
	PauseWhileDrainBlocked ScaleDownPause = "DrainBlocked"
	// PauseWhileInstanceNotReady: the Node of a remaining instance is not Ready or cannot
	// be found.
	PauseWhileInstanceNotReady ScaleDownPause = "InstanceNotReady"
)

// DeletionPolicy is what the deletion of a pool does on the shards.
//
// +kubebuilder:validation:Enum=Delete;Retain
type DeletionPolicy string

// Deletion policies.
const (
	// DeletionDelete deletes groups and instances.
	DeletionDelete DeletionPolicy = "Delete"
	// DeletionRetain leaves groups and instances as they are.
	DeletionRetain DeletionPolicy = "Retain"
)
