// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1alpha1

// Phase summarizes the conditions of a cluster.
type Phase string

const (
	// PhaseReconciling means that the cluster is being created, or that not every node is
	// ready, replicated and observed.
	PhaseReconciling Phase = "Reconciling"
	// PhaseHealthy means that the cluster has its desired nodes, that all of them are
	// ready, and that every copy exists.
	PhaseHealthy Phase = "Healthy"
	// PhaseScalingUp means that nodes are being added.
	PhaseScalingUp Phase = "ScalingUp"
	// PhaseScalingDown means that a node is being removed.
	PhaseScalingDown Phase = "ScalingDown"
	// PhaseBlocked means that a removal or a rollout waits until it is safe.
	PhaseBlocked Phase = "Blocked"
)

// Types of conditions.
const (
	// ConditionReady is True while the phase is Healthy and every write of the last sync
	// succeeded. The cluster then has its desired nodes, every node is ready, reports its
	// metrics and has the present revision, and no node reports a partition with too few
	// owners. In every other phase it is False, also while nodes are added or removed, or
	// Pods are updated. The reason and the message explain the phase, or the failed write.
	ConditionReady = "Ready"
	// ConditionAvailable is True while fewer nodes than the replication factor are not
	// ready, so that each partition has a copy on a node that is ready.
	ConditionAvailable = "Available"
	// ConditionProgressing is True while the number of nodes or their revision changes.
	ConditionProgressing = "Progressing"
	// ConditionScaleDownBlocked is True while a removal waits until it is safe.
	ConditionScaleDownBlocked = "ScaleDownBlocked"
	// ConditionMetricsAvailable is True while every node reports its metrics.
	ConditionMetricsAvailable = "MetricsAvailable"
	// ConditionRolledOut is True when every Pod runs the present revision.
	ConditionRolledOut = "RolledOut"
	// ConditionVolumesExpanded is True when the volume of every node has the size of the spec, or
	// more. Otherwise the message says which volume claim has not, and why.
	ConditionVolumesExpanded = "VolumesExpanded"
	// ConditionOwned is False while an object of a name that the cluster needs belongs to
	// something else.
	ConditionOwned = "Owned"
	// ConditionReconciled is False when a write failed.
	ConditionReconciled = "Reconciled"
	// ConditionDiskPressure is True while a volume is used to targetDiskPercent. It is missing if
	// targetDiskPercent is not set.
	ConditionDiskPressure = "DiskPressure"
	// ConditionVolumesAvailable is False while the volume of a node is lost, is to be replaced on request,
	// or is being replaced. The message says which, and what the replacement waits for.
	ConditionVolumesAvailable = "VolumesAvailable"
	// ConditionSurvivesZoneLoss is True while each zone has fewer nodes than there are copies of a partition, so that the
	// loss of a zone leaves a copy of each. It is missing if the nodes are not in several zones.
	ConditionSurvivesZoneLoss = "SurvivesZoneLoss"
	// ConditionPaused is True while spec.paused is true. Otherwise it is missing.
	ConditionPaused = "Paused"
)

// Reasons of conditions and events.
const (
	// ReasonMetricsUnavailable means that a node does not report its metrics.
	ReasonMetricsUnavailable = "MetricsUnavailable"
	// ReasonUnderreplicated means that partitions have too few owners.
	ReasonUnderreplicated = "Underreplicated"
	// ReasonNotAllReady means that a Pod is missing or not ready.
	ReasonNotAllReady = "NotAllReady"
	// ReasonPodTerminating means that a Pod is being deleted.
	ReasonPodTerminating = "PodTerminating"
	// ReasonNotObserved means that the StatefulSet controller has not caught up.
	ReasonNotObserved = "NotObserved"
	// ReasonMembersDiffer means that a node does not see all nodes.
	ReasonMembersDiffer = "MembersDiffer"
	// ReasonRepairing means that data moves after a change of the nodes.
	ReasonRepairing = "Repairing"
	// ReasonSettling means that the last change of the nodes is too recent.
	ReasonSettling = "Settling"
	// ReasonDiskFull means that the volumes of the other nodes would be too full, or that
	// a node has stopped to write.
	ReasonDiskFull = "DiskFull"
	// ReasonRollingOut means that Pods are being updated.
	ReasonRollingOut = "RollingOut"
	// ReasonRolloutHalted means that an updated Pod does not become ready.
	ReasonRolloutHalted = "RolloutHalted"
	// ReasonProgressDeadlineExceeded means that an update has made no step for
	// progressDeadlineSeconds.
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	// ReasonExpanding means that volumes grow to the size of the spec.
	ReasonExpanding = "Expanding"
	// ReasonExpansionNotAllowed means that the StorageClass of a volume claim does not allow volumes
	// to grow.
	ReasonExpansionNotAllowed = "ExpansionNotAllowed"
	// ReasonPaused means that nothing is changed, because spec.paused is true.
	ReasonPaused = "Paused"
	// ReasonSingleCopy means that each partition has one copy, which a removal would lose.
	ReasonSingleCopy = "SingleCopy"
	// ReasonStabilizing means that the last change of the size is too recent.
	ReasonStabilizing = "Stabilizing"
	// ReasonNameConflict means that an object of the needed name is not controlled by
	// the cluster.
	ReasonNameConflict = "NameConflict"
	// ReasonApplyFailed means that a write failed.
	ReasonApplyFailed = "ApplyFailed"
	// ReasonDeleteFailed means that a volume claim could not be deleted.
	ReasonDeleteFailed = "DeleteFailed"
	// ReasonVolumeLost means that the volume of a node is lost, and is not replaced by itself or not yet.
	ReasonVolumeLost = "VolumeLost"
	// ReasonTooManyLost means that so many nodes are lost that their volumes may have the last copy of
	// data.
	ReasonTooManyLost = "TooManyLost"
	// ReasonReplacing means that the volume of a node is being replaced.
	ReasonReplacing = "Replacing"
	// ReasonZonesNotUsed means that all copies of a partition may be in one zone.
	ReasonZonesNotUsed = "ZonesNotUsed"
	// ReasonAsExpected means that nothing is wrong.
	ReasonAsExpected = "AsExpected"
	// ReasonCreating means that the StatefulSet is being created.
	ReasonCreating = "Creating"
	// ReasonScalingUp means that nodes are being added.
	ReasonScalingUp = "ScalingUp"
	// ReasonScalingDown means that a node is being removed.
	ReasonScalingDown = "ScalingDown"
	// ReasonScaledUp and ReasonScaledDown are the reasons of events.
	ReasonScaledUp = "ScaledUp"
	// ReasonScaledDown is the reason of an event.
	ReasonScaledDown = "ScaledDown"
	// ReasonScaleDownUnblocked is the reason of an event.
	ReasonScaleDownUnblocked = "ScaleDownUnblocked"
	// ReasonPodReplaced is the reason of an event.
	ReasonPodReplaced = "PodReplaced"
	// ReasonVolumeExpanded and ReasonStatefulSetRecreated are the reasons of events.
	ReasonVolumeExpanded = "VolumeExpanded"
	// ReasonExpansionReduced is the reason of an event.
	ReasonExpansionReduced = "ExpansionReduced"
	// ReasonStatefulSetRecreated is the reason of an event.
	ReasonStatefulSetRecreated = "StatefulSetRecreated"
	// ReasonVolumeReplaced is the reason of an event.
	ReasonVolumeReplaced = "VolumeReplaced"
	// ReasonVolumeReclaimed is the reason of an event.
	ReasonVolumeReclaimed = "VolumeReclaimed"
)
