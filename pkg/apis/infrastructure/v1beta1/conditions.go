// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

// Condition types. Each is true when all is well, except Paused, ScalingUp, ScalingDown,
// RollingOut, Remediating and ServerDeleted, which say what goes on
// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/infra-machinepool#inframachinepool-conditions).
const (
	// ConditionReady is on every kind. On a machine it is true while the instance runs. On
	// the other kinds it is true while nothing is wrong, also while instances are created
	// and removed.
	ConditionReady = "Ready"
	// ConditionShardsReachable, on a pool, is true while all shards of the pool are
	// connected.
	ConditionShardsReachable = "ShardsReachable"
	// ConditionShardReachable, on a shard group, is true while its shard is
	// connected.
	ConditionShardReachable = "ShardReachable"
	// ConditionConfigValid, on a shard group, is false while the shard rejects the
	// configuration of the group.
	ConditionConfigValid = "ConfigValid"
	// ConditionInstanceCreated, on an NstanceMachine, is true once the shard has
	// accepted the create request of the instance.
	ConditionInstanceCreated = "InstanceCreated"
	// ConditionServerDeleted, on an NstanceMachine, is true once the shard has deleted
	// the instance on its own; the message is the reason that the shard reports.
	ConditionServerDeleted = "ServerDeleted"
	// ConditionDrainsProgressing, on a shard group and an NstanceMachine, is false while
	// a drain is blocked. The condition exists after the first drain.
	ConditionDrainsProgressing = "DrainsProgressing"
	// ConditionMachinesEnabled, on a pool whose instances are to have Machines, is true while
	// each instance gets one. A pool without Machines does not have the condition.
	ConditionMachinesEnabled = "MachinesEnabled"
	// ConditionScalingUp, on a pool, is true while a shard runs fewer instances than it is to
	// run.
	ConditionScalingUp = "ScalingUp"
	// ConditionScalingDown, on a pool, is true while a shard runs more instances than it is to
	// run, or instances are still to be removed. If a guard for scale-downs blocks the next
	// step, the reason is the reason of the guard, and the message names the instances.
	ConditionScalingDown = "ScalingDown"
	// ConditionRollingOut, on a pool with a policy for its rotation, is true while instances are
	// outdated. If the rotation does not go on, the reason says why.
	ConditionRollingOut = "RollingOut"
	// ConditionRemediating, on a pool with a policy for remediation, is true while the instances of
	// unhealthy Nodes are being replaced, or are not because too many Nodes are unhealthy.
	ConditionRemediating = "Remediating"
	// ConditionPreferredInstances, on a pool with candidates, is false while instances are of other
	// candidates than they would be if the providers had capacity for all.
	ConditionPreferredInstances = "PreferredInstances"
	// ConditionCapacityAvailable, on a pool, is false while a shard reports that it has no
	// capacity or quota for an instance, or has lent instances to other shards
	// (docs/runbooks/a-zone-without-stock.md#a-zone-without-stock).
	ConditionCapacityAvailable = "CapacityAvailable"
	// ConditionNodesJoined, on a pool, is false while an instance has run for five minutes without a
	// Node: its machine has not joined, or somebody has deleted the Node. The condition exists after
	// the first such instance.
	ConditionNodesJoined = "NodesJoined"
	// ConditionPaused, on all kinds but the template, is true while
	// the object, its Cluster, or its MachinePool or Machine is paused: the operator
	// changes no shard and no spec (docs/capi.md#pause).
	ConditionPaused = "Paused"
	// ConditionKubeconfigAvailable, on a cluster, is false while the Secret with which
	// Cluster API reaches the Nodes is missing or not usable.
	ConditionKubeconfigAvailable = "KubeconfigAvailable"
	// ConditionIdentityReady, on a cluster, is true while the operator has a client
	// certificate that the shards accept.
	ConditionIdentityReady = "IdentityReady"
	// ConditionWorkloadClusterReachable, on a cluster, is true while the operator can list
	// the Nodes of a workload cluster that it does not run in. If it runs in that cluster,
	// there is no such condition.
	ConditionWorkloadClusterReachable = "WorkloadClusterReachable"
	// ConditionAvailable, on a cluster, is the availability of the control plane, which
	// Nstance does not manage: it is always true (docs/capi.md#conditions).
	ConditionAvailable = "Available"
)

// Condition reasons that several kinds share. docs/reference.md#conditions describes how to
// react.
const (
	// ReasonReady: the actual state is the requested state.
	ReasonReady = "Ready"
	// ReasonReachable: the shard or shards are connected.
	ReasonReachable = "Reachable"
	// ReasonShardUnreachable: a shard is configured but not connected.
	ReasonShardUnreachable = "ShardUnreachable"
	// ReasonWorkloadClusterUnreachable: the API server of the workload cluster cannot be
	// reached; the message is the error.
	ReasonWorkloadClusterUnreachable = "WorkloadClusterUnreachable"
	// ReasonWrongShard: the server at the address of a shard serves another shard.
	ReasonWrongShard = "WrongShard"
	// ReasonShardLimitExceeded: the shard reports more than the operator keeps, so nothing of
	// the report is used.
	ReasonShardLimitExceeded = "ShardLimitExceeded"
	// ReasonOtherCluster: the tenant belongs to another Kubernetes cluster than the
	// operator's, so the servers reject its calls.
	ReasonOtherCluster = "OtherCluster"
	// ReasonUnknownShard: a shard is not configured.
	ReasonUnknownShard = "UnknownShard"
	// ReasonNotSynced: the cache of a shard is not complete yet, so the operator decides
	// nothing from it.
	ReasonNotSynced = "NotSynced"
	// ReasonConfigRejected: the shard rejects the configuration; the message is the
	// message of the shard.
	ReasonConfigRejected = "ConfigRejected"
	// ReasonConfigAccepted: the shard has accepted the configuration.
	ReasonConfigAccepted = "ConfigAccepted"
	// ReasonShardAhead: the shard has accepted a newer revision of the group than this
	// object, as after a restore of etcd; the message has both sizes.
	ReasonShardAhead = "ShardAhead"
	// ReasonUpsertFailed: the shard returned an error that is neither a rejection nor a
	// lost connection; the message is the message of the shard.
	ReasonUpsertFailed = "UpsertFailed"
	// ReasonNodesJoined: each instance that runs has a Node, or has not run for long.
	ReasonNodesJoined = "NodesJoined"
	// ReasonNodeMissing: instances have run for five minutes without a Node; the message names
	// them.
	ReasonNodeMissing = "NodeMissing"
	// ReasonScalingUp and ReasonNotScalingUp: whether a shard of the pool runs fewer
	// instances than it is to run.
	ReasonScalingUp    = "ScalingUp"
	ReasonNotScalingUp = "NotScalingUp"
	// ReasonNotScalingDown: no shard of the pool runs more instances than it is to run.
	ReasonNotScalingDown = "NotScalingDown"
	// ReasonRollingOut and ReasonNotRollingOut: whether instances of the pool are outdated and are
	// being replaced.
	ReasonRollingOut    = "RollingOut"
	ReasonNotRollingOut = "NotRollingOut"
	// ReasonOutsideWindow: the windows of the rotation are closed; the message has the next opening.
	ReasonOutsideWindow = "OutsideWindow"
	// ReasonBaking: new instances are to be ready for some time before others are replaced.
	ReasonBaking = "Baking"
	// ReasonRotationFailed: a new instance has no Ready Node in time; the message names it.
	ReasonRotationFailed = "RotationFailed"
	// ReasonForcedAgeNear: the windows of the rotation are too short for the outdated instances before
	// the first reaches the forced age of its shard.
	ReasonForcedAgeNear = "ForcedAgeNear"
	// ReasonInvalidSchedule: a window of the rotation cannot be read, so that none is open.
	ReasonInvalidSchedule = "InvalidSchedule"
	// ReasonRemediating and ReasonNotRemediating: whether Nodes of the pool are unhealthy, and their
	// instances are being replaced.
	ReasonRemediating    = "Remediating"
	ReasonNotRemediating = "NotRemediating"
	// ReasonTooManyUnhealthy: more Nodes are unhealthy than the policy for remediation allows, so no
	// further instance is replaced.
	ReasonTooManyUnhealthy = "TooManyUnhealthy"
	// ReasonPreferred and ReasonFallback: whether each instance of the pool is of the candidate that
	// it is meant to be.
	ReasonPreferred = "Preferred"
	ReasonFallback  = "Fallback"
	// ReasonDriftRepeated: another writer changes the group on the shard again and again.
	ReasonDriftRepeated = "DriftRepeated"
	// ReasonProviderError: the provider of the shard fails to create or delete
	// instances; the message is the message of the provider.
	ReasonProviderError = "ProviderError"
	// ReasonOutOfCapacity: the shards decline the create request of an instance, because
	// their providers have no capacity or quota for it.
	ReasonOutOfCapacity = "OutOfCapacity"
	// ReasonWaiting: the instances that a shard cannot create stay on the shard.
	ReasonWaiting = "Waiting"
	// ReasonZoneOutOfStock: the instances that a shard cannot create move to other shards
	// soon, or as soon as another shard can be used.
	ReasonZoneOutOfStock = "ZoneOutOfStock"
	// ReasonMoved: other shards run instances that a shard could not create.
	ReasonMoved = "Moved"
	// ReasonNoShortfall: each shard has created its instances, and no shard has lent any.
	ReasonNoShortfall = "NoShortfall"
	// ReasonPaused and ReasonNotPaused: whether the object is paused.
	ReasonPaused    = "Paused"
	ReasonNotPaused = "NotPaused"
	// ReasonDeleting: the object is being deleted and waits for its shard.
	ReasonDeleting = "Deleting"
	// ReasonNoMachinePool: the pool has no MachinePool, which would set the replicas.
	ReasonNoMachinePool = "NoMachinePool"
	// ReasonMachinePoolConflict: several MachinePools refer to the pool, or the
	// MachinePool of its name refers to another object.
	ReasonMachinePoolConflict = "MachinePoolConflict"
	// ReasonTooManyReplicas: the MachinePool has more replicas than MaxReplicas.
	ReasonTooManyReplicas = "TooManyReplicas"
	// ReasonBelowMinimum: the MachinePool has fewer replicas than the shards guarantee, or a
	// scale-down selects an instance that a shard keeps for its minimum.
	ReasonBelowMinimum = "BelowMinimum"
	// ReasonGroupInUse: another pool has the same group on the same shard.
	ReasonGroupInUse = "GroupInUse"
	// ReasonOutdatedObject: an object has the format of a version before v0.1.0.
	ReasonOutdatedObject = "OutdatedObject"
	// ReasonWaitingForMachine: Cluster API has not set the owner Machine yet.
	ReasonWaitingForMachine = "WaitingForMachine"
	// ReasonNoShard: no connected shard has the group.
	ReasonNoShard = "NoShard"
	// ReasonInstanceCreated: the shard has accepted the create request of the instance.
	ReasonInstanceCreated = "InstanceCreated"
	// ReasonInstanceRefused: the shard rejects the create request; the message is the
	// message of the shard.
	ReasonInstanceRefused = "InstanceRefused"
	// ReasonInstanceUnknown: the object has or had an instance, and nothing in it names
	// the instance, as after a restore without status and annotations.
	ReasonInstanceUnknown = "InstanceUnknown"
	// ReasonProvisioning: the instance is not running yet.
	ReasonProvisioning = "Provisioning"
	// ReasonMachinesEnabled: the instances of a pool have Machines, as spec.machineMode
	// requests.
	ReasonMachinesEnabled = "Enabled"
	// ReasonUnsupportedByServer: the server of a shard does not support a request, or a setting
	// of the pool; the message names the shard.
	ReasonUnsupportedByServer = "UnsupportedByServer"
	// ReasonInstanceFailed: the instance has stopped or failed.
	ReasonInstanceFailed = "InstanceFailed"
	// ReasonServerDeleted: the shard has deleted the instance on its own.
	ReasonServerDeleted = "ServerDeleted"
	// ReasonNotRegistered: the operator does not have its client certificate yet.
	ReasonNotRegistered = "NotRegistered"
	// ReasonCertificateExpiring: less than a tenth of the lifetime of the operator's
	// client certificate is left.
	ReasonCertificateExpiring = "CertificateExpiring"
	// ReasonDraining: at least one Node is being drained, and no drain is blocked.
	ReasonDraining = "Draining"
	// ReasonNoDrains: no Node is being drained.
	ReasonNoDrains = "NoDrains"
	// ReasonDrainBlocked: a drain is blocked; status.blockedDrains of the shard group has
	// Node, Pod and PodDisruptionBudget.
	ReasonDrainBlocked = "DrainBlocked"
	// ReasonNoNode: an instance that is being drained has no Node.
	ReasonNoNode = "NoNode"
	// ReasonRemoving: instances are being removed; the message names the shards, or the
	// numbers of a guarded scale-down.
	ReasonRemoving = "Removing"
	// ReasonStabilizing: the replicas were lowered too short a time ago for a step of the
	// scale-down.
	ReasonStabilizing = "Stabilizing"
	// ReasonInstanceNotReady: the Node of an instance is not Ready or cannot be found, and
	// so blocks a scale-down.
	ReasonInstanceNotReady = "InstanceNotReady"
	// ReasonMinReady: the Nodes of all instances are Ready, but a Node is not Ready for long
	// enough for a step of the scale-down.
	ReasonMinReady = "MinReadySeconds"
	// ReasonAmbiguousProviderID: a provider id matches more than one Node.
	ReasonAmbiguousProviderID = "AmbiguousProviderID"
	// ReasonNodeOfOtherShard: a shard reports a provider id that another shard reports too, or
	// whose Node has the label LabelShard of another shard.
	ReasonNodeOfOtherShard = "NodeOfOtherShard"
)

// Reasons of a blocked drain in status.blockedDrains of a shard group, beside
// ReasonAmbiguousProviderID and ReasonNodeOfOtherShard.
const (
	// ReasonProviderIDMismatch: no Node has the provider id of the instance, and a Node with
	// its name or with one of its addresses has another provider id.
	ReasonProviderIDMismatch = "ProviderIDMismatch"
	// ReasonPodNotEvictable: all evictions of the Pod fail.
	ReasonPodNotEvictable = "PodNotEvictable"
	// ReasonPodNotTerminating: the Pod is being deleted, its grace period is over, and its
	// containers have not exited.
	ReasonPodNotTerminating = "PodNotTerminating"
	// ReasonRequestsFailing: the API server rejects requests that the drain needs, or does
	// not respond; the message is the error.
	ReasonRequestsFailing = "RequestsFailing"
)
