// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

// Condition types. Ready means the same on every kind: what the spec asks for
// is what there is.
const (
	// ConditionReady is on every kind.
	ConditionReady = "Ready"
	// ConditionShardsReachable, on a pool, is true while every shard of the
	// pool is connected.
	ConditionShardsReachable = "ShardsReachable"
	// ConditionShardReachable, on a shard group, is true while its shard is
	// connected.
	ConditionShardReachable = "ShardReachable"
	// ConditionConfigValid, on a shard group, is false when the shard refused
	// the group's configuration.
	ConditionConfigValid = "ConfigValid"
	// ConditionInstanceCreated, on a machine, is true once its shard has taken the
	// order of its instance.
	ConditionInstanceCreated = "InstanceCreated"
	// ConditionServerDeleted, on a machine, is true once its shard has ended the
	// instance by itself; the reason is ServerDeleted, the message the shard's
	// (operator document).
	ConditionServerDeleted = "ServerDeleted"
	// ConditionDrainsProgressing, on a shard group and a machine, is false while
	// something keeps a Node from being drained. It is there since the first
	// drain.
	ConditionDrainsProgressing = "DrainsProgressing"
	// ConditionMachinesEnabled, on a pool, is true while each of its instances has
	// a Machine.
	ConditionMachinesEnabled = "MachinesEnabled"
	// ConditionPaused, on a pool and a cluster, is true while it, its Cluster, or
	// the pool's MachinePool is paused: nothing is written to shards or to specs
	// (CAPI contract).
	ConditionPaused = "Paused"
	// ConditionKubeconfigAvailable, on a cluster, is false while the Secret is
	// missing with which Cluster API reaches the Nodes.
	ConditionKubeconfigAvailable = "KubeconfigAvailable"
	// ConditionAvailable, on a cluster, stands for the availability of the
	// control plane, which Nstance does not manage (CAPI contract).
	ConditionAvailable = "Available"
)

// Condition reasons that are the same on several kinds.
const (
	// ReasonReady: everything is as the spec asks.
	ReasonReady = "Ready"
	// ReasonReachable: the shard or shards are connected.
	ReasonReachable = "Reachable"
	// ReasonShardUnreachable: a shard is configured but does not answer.
	ReasonShardUnreachable = "ShardUnreachable"
	// ReasonUnknownShard: a shard is named that is not configured.
	ReasonUnknownShard = "UnknownShard"
	// ReasonNotSynced: a shard has not been read completely since this
	// operator started, so nothing is decided from what it has.
	ReasonNotSynced = "NotSynced"
	// ReasonConfigRejected: the shard refused the configuration; the message
	// holds its words.
	ReasonConfigRejected = "ConfigRejected"
	// ReasonConfigAccepted: the shard has taken the configuration.
	ReasonConfigAccepted = "ConfigAccepted"
	// ReasonUpsertFailed: the shard answered with an error that is neither a
	// refusal nor a lost connection; the message holds its words.
	ReasonUpsertFailed = "UpsertFailed"
	// ReasonScaling: the number of running instances is not yet the wanted one.
	ReasonScaling = "Scaling"
	// ReasonProviderError: the shard's provider refuses to make or end instances;
	// the message holds its words.
	ReasonProviderError = "ProviderError"
	// ReasonPaused and ReasonNotPaused: whether somebody has paused the object.
	ReasonPaused    = "Paused"
	ReasonNotPaused = "NotPaused"
	// ReasonDeleting: the object is being deleted and waits for its shard.
	ReasonDeleting = "Deleting"
	// ReasonNoMachinePool: there is no MachinePool that says how many replicas.
	ReasonNoMachinePool = "NoMachinePool"
	// ReasonMachinePoolConflict: it is not clear which MachinePool says how many
	// replicas.
	ReasonMachinePoolConflict = "MachinePoolConflict"
	// ReasonGroupInUse: another pool has the same group on the same shard.
	ReasonGroupInUse = "GroupInUse"
	// ReasonWaitingForMachine: Cluster API has not made a Machine the owner yet.
	ReasonWaitingForMachine = "WaitingForMachine"
	// ReasonNoShard: no shard that can be reached has the group.
	ReasonNoShard = "NoShard"
	// ReasonInstanceCreated: the shard has taken the order of the instance.
	ReasonInstanceCreated = "InstanceCreated"
	// ReasonInstanceRefused: the shard refuses to make the instance; the message
	// holds its words.
	ReasonInstanceRefused = "InstanceRefused"
	// ReasonProvisioning: the instance does not run yet.
	ReasonProvisioning = "Provisioning"
	// ReasonMachinesEnabled and ReasonMachinesDisabled: whether the instances of a
	// pool have Machines, as the pool asks.
	ReasonMachinesEnabled  = "Enabled"
	ReasonMachinesDisabled = "Disabled"
	// ReasonUnsupportedByServer: a shard's server cannot do what is asked for; the
	// message names the shard.
	ReasonUnsupportedByServer = "UnsupportedByServer"
	// ReasonInstanceFailed: the instance has stopped or failed.
	ReasonInstanceFailed = "InstanceFailed"
	// ReasonServerDeleted: the shard has ended the instance by itself.
	ReasonServerDeleted = "ServerDeleted"
	// ReasonDraining: at least one Node is being drained, and nothing keeps it.
	ReasonDraining = "Draining"
	// ReasonNoDrains: no Node is being drained.
	ReasonNoDrains = "NoDrains"
	// ReasonDrainBlocked: something keeps a Node from being drained; the message
	// names Node, Pod and PodDisruptionBudget.
	ReasonDrainBlocked = "DrainBlocked"
	// ReasonAmbiguousProviderID: a provider id matches more than one Node.
	ReasonAmbiguousProviderID = "AmbiguousProviderID"
)
