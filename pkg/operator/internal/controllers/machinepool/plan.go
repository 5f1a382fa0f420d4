// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/base/poolplan"
)

// decision is the part of a sync that act carries out and newStatus reports. The zero value
// changes nothing.
type decision struct {
	// create is the number of replicas of the MachinePool to create, nil if it exists.
	create *int32
	// raise is the number of replicas to set on the MachinePool, nil for no change.
	raise *int32
	// apply are the shard groups to write.
	apply []wantedShardGroup
	// deleteShardGroups are the shard groups on shards that the pool no longer names, or
	// all shard groups of a pool that is being deleted.
	deleteShardGroups []*v1beta1.NstanceShardGroup
	// deleteMachinePools are the MachinePools of a pool that is being deleted.
	deleteMachinePools []*clusterv1.MachinePool
	// addOwners adds the MachinePools to the owners of a pool that is being deleted.
	addOwners bool
	// removeFinalizer completes the deletion of the pool.
	removeFinalizer bool
	// retain is why the deletion leaves the groups and instances as they are, nil if it does
	// not. Nothing else is done before.
	retain *problem
	// statusOnly is set while the pool is paused: only its status may be written.
	statusOnly bool
	// sizes are the wanted sizes by shard, nil while the replicas cannot be divided.
	sizes []int32
	// scalingDown is the guarded scale-down that is not complete, nil if it is.
	scalingDown *scalingDown
	machines    machinesMode
	// blocked is why the replicas cannot be divided.
	blocked *problem
	// lent is how many instances shards have lent, by shard as distribute.Stock.Lent.
	lent []int32
	// handOver leaves the specs that the operator has created to the users.
	handOver bool
	// rotation is the rotation, nil if the pool has no policy for it or nothing is decided.
	rotation *rotationDecision
	// moved is set if instances move from one shard to another because of a shortfall.
	moved bool
}

// problem is the reason and the message of a condition.
type problem struct{ reason, message string }

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason, fmt.Sprintf(format, args...)}
}

// plan decides how the replicas of a pool are divided. It changes nothing while
// information is missing: sizes stay until the number of replicas and all shards are
// known. Only a rotation can be paused at any time.
func plan(observed observation) decision {
	d := planReplicas(observed)
	if d.blocked != nil && observed.pool.DeletionTimestamp.IsZero() {
		d.apply = append(d.apply, pauseRotation(observed)...)
	}
	return d
}

func planReplicas(observed observation) decision {
	before, sizes := machinesMode{on: hasMachines(observed)}, distribute.Sizes(observed.distributable)
	current := distribute.Total(sizes)
	switch {
	case observed.paused != "":
		return decision{statusOnly: true, sizes: sizes, machines: before}
	case !observed.pool.DeletionTimestamp.IsZero():
		return planDeletion(observed, before)
	}
	machines := planMachines(observed, before)
	if blocked := checkPreconditions(observed); blocked != nil {
		return decision{blocked: blocked, machines: machines}
	}
	if owner := machinePoolOwner(observed.pool); len(observed.machinePools) == 0 && owner != nil {
		// The garbage collector deletes the pool, also if there is another MachinePool.
		return decision{machines: machines, blocked: problemf(v1beta1.ReasonNoMachinePool,
			"MachinePool %q, which owns the pool, does not exist; the pool is deleted and imported again, and its instances are kept", owner.Name)}
	}
	if len(observed.machinePools) == 0 {
		// With the current number of instances, an import changes nothing.
		return decision{create: &current, machines: machines, blocked: problemf(v1beta1.ReasonNoMachinePool,
			"MachinePool %q is being created", observed.pool.Name)}
	}
	machinePool := observed.machinePools[0]
	replicas := *machinePool.Spec.Replicas
	if !replicasExplicit(observed, machinePool) && replicas < current {
		return decision{raise: &current, machines: machines, blocked: problemf(v1beta1.ReasonNoMachinePool,
			"the %d replicas of MachinePool %q are a default, and are being raised to the %d instances of the shards",
			replicas, machinePool.Name, current)}
	}

	pool := observed.dividable(replicas, before)
	if below := pool.BelowMinimum(); below != "" {
		return decision{blocked: &problem{v1beta1.ReasonBelowMinimum, below}, machines: machines}
	}
	allowed := checkGuards(observed, current, replicas)
	pool.Limits = allowed.limits()
	division := pool.Divide()
	rotation := planRotation(observed, replicas, division.Sizes)
	d := decision{
		rotation:    rotation,
		machines:    machines,
		sizes:       division.Sizes,
		scalingDown: allowed.progress(division),
		lent:        division.Lent,
		moved:       division.Moved,
		apply:       planShardGroups(observed, &pool, division, rotation, before, machines),
	}
	// Without shard groups, the replicas count only if they have an owner (replicasExplicit).
	d.handOver = !d.createsShardGroup()
	for _, group := range observed.shardGroups {
		if shardRemoved(observed.pool, group) && group.DeletionTimestamp.IsZero() {
			// The pool is not deleted, so its policy does not apply: the instances are
			// replaced on the other shards.
			planPolicy(group, "", &d)
		}
	}
	return d
}

// dividable returns the pool of an observation with one MachinePool, for package poolplan.
func (o *observation) dividable(replicas int32, machines machinesMode) poolplan.Pool {
	groups := make([]*v1beta1.NstanceShardGroup, len(o.shards))
	for i := range o.shards {
		groups[i] = o.shards[i].group
	}
	return poolplan.Pool{
		NstanceMachinePool: o.pool,
		MachinePool:        o.machinePools[0].Name,
		Replicas:           replicas,
		Groups:             groups,
		Shards:             o.distributable,
		Machines:           machines.on,
		Candidates:         o.candidates,
		MayMove:            o.mayMove,
	}
}

// checkPreconditions returns why the replicas cannot be divided, nil if they can.
func checkPreconditions(observed observation) *problem {
	var unknown, unread []string
	for _, shard := range observed.shards {
		switch {
		case !shard.configured && (shard.group == nil || len(observed.machinePools) == 0):
			// The number of its instances was never known.
			unknown = append(unknown, shard.id)
		case shard.configured && !shard.synced:
			unread = append(unread, shard.id)
		}
		if shard.group != nil && metav1.GetControllerOfNoCopy(shard.group) != nil && !metav1.IsControlledBy(shard.group, observed.pool) {
			return problemf(v1beta1.ReasonGroupInUse,
				"shard group %q belongs to another pool", shard.group.Name)
		}
		if annotation := outdatedAnnotation(shard.group); annotation != "" {
			return problemf(v1beta1.ReasonOutdatedObject,
				"shard group %q has the annotation %s, by which versions before v0.1.0 kept its size, and no size is changed; without the annotation the replicas are divided evenly",
				shard.group.Name, annotation)
		}
	}
	switch {
	case len(unknown) > 0:
		return problemf(v1beta1.ReasonUnknownShard,
			"spec.shards names shards that are not configured: %s", strings.Join(unknown, ", "))
	case len(observed.machinePools) > 1:
		return problemf(v1beta1.ReasonMachinePoolConflict,
			"%d MachinePools refer to this pool: %s", len(observed.machinePools), names(observed.machinePools))
	case len(observed.machinePools) == 1 && !observed.machinePools[0].DeletionTimestamp.IsZero():
		return problemf(v1beta1.ReasonDeleting,
			"MachinePool %q is being deleted", observed.machinePools[0].Name)
	case len(observed.machinePools) == 0 && observed.clusterDeleting:
		return &problem{v1beta1.ReasonNoMachinePool, "no MachinePool is created while the Cluster is being deleted"}
	case len(observed.machinePools) == 1 && observed.machinePools[0].Spec.Replicas == nil:
		return problemf(v1beta1.ReasonNoMachinePool,
			"MachinePool %q has no spec.replicas", observed.machinePools[0].Name)
	case len(observed.machinePools) == 1 && unusedBootstrap(observed.machinePools[0]) != "":
		return problemf(v1beta1.ReasonConfigRejected,
			"MachinePool %q has bootstrap data that is not used, %s: the shards provide the userdata of their instances; set spec.template.spec.bootstrap.dataSecretName to \"\", without a configRef",
			observed.machinePools[0].Name, unusedBootstrap(observed.machinePools[0]))
	case len(observed.machinePools) == 1 && *observed.machinePools[0].Spec.Replicas > v1beta1.MaxReplicas:
		return problemf(v1beta1.ReasonTooManyReplicas,
			"MachinePool %q has %d replicas, and a pool has at most %d; the sizes stay",
			observed.machinePools[0].Name, *observed.machinePools[0].Spec.Replicas, v1beta1.MaxReplicas)
	case len(observed.machinePools) == 0 && observed.nameTaken:
		return problemf(v1beta1.ReasonMachinePoolConflict,
			"MachinePool %q refers to another infrastructure object", observed.pool.Name)
	case len(observed.machinePools) == 0 && len(unread) > 0:
		return problemf(v1beta1.ReasonNotSynced,
			"no MachinePool is created before every shard was read; missing: %s", strings.Join(unread, ", "))
	case len(observed.machinePools) == 1 && len(unread) > 0 && !replicasExplicit(observed, observed.machinePools[0]):
		return problemf(v1beta1.ReasonNotSynced,
			"the replicas of MachinePool %q are a default, and not every shard was read; missing: %s",
			observed.machinePools[0].Name, strings.Join(unread, ", "))
	}
	return nil
}

// outdatedAnnotation returns an annotation of a shard group that versions before v0.1.0 wrote
// instead of spec.imported and spec.loan, "" if it has none.
func outdatedAnnotation(group *v1beta1.NstanceShardGroup) string {
	if group == nil {
		return ""
	}
	for _, annotation := range []string{"nstance.dev/kept-for", "nstance.dev/lent"} {
		if _, found := group.Annotations[annotation]; found {
			return annotation
		}
	}
	return ""
}

func unusedBootstrap(machinePool *clusterv1.MachinePool) string {
	return capi.UnusedBootstrap(&machinePool.Spec.Template.Spec.Bootstrap)
}

// replicasExplicit reports whether a client has set the replicas. If no client does, the
// webhook of Cluster API sets a default when the MachinePool is created, and fields
// that a webhook sets have no manager. So before the replicas are divided for the first
// time, only replicas with a manager count. Afterwards all count: replicas that the scale
// subresource sets have no manager either, and the admission webhook rejects the
// removal of replicas. They also count if the API server records no managers at all.
func replicasExplicit(observed observation, machinePool *clusterv1.MachinePool) bool {
	return len(observed.shardGroups) > 0 || len(machinePool.ManagedFields) == 0 || capi.ReplicasOwned(machinePool)
}

func names(machinePools []*clusterv1.MachinePool) string {
	list := make([]string, len(machinePools))
	for i, machinePool := range machinePools {
		list[i] = machinePool.Name
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// machinesMode says whether the instances of a pool have Machines after this sync, and the
// condition MachinesEnabled. An empty status leaves the condition as it is.
type machinesMode struct {
	on     bool
	status metav1.ConditionStatus
	problem
	// unwanted is set if the instances are to have no Machines, and the pool no condition.
	unwanted bool
}

// planMachines decides whether the instances of a pool have Machines. They are enabled
// once the servers of all shards list their instances and remove the instances that a
// scale-down selects. Once enabled, they stay until the user disables them, because the
// existing Machines depend on that.
func planMachines(observed observation, mode machinesMode) machinesMode {
	if len(observed.machinePools) != 1 {
		return mode
	}
	if !wantsMachines(observed.pool, observed.machinePools[0]) {
		return machinesMode{unwanted: true}
	}
	var unsupported, unknown []string
	for _, shard := range observed.shards {
		switch {
		case !shard.synced || shard.reported == nil:
			unknown = append(unknown, shard.id)
		case !shard.reported.ListsInstances:
			unsupported = append(unsupported, shard.id)
		}
	}
	switch {
	case len(unsupported) > 0:
		mode.status = metav1.ConditionFalse
		mode.problem = problem{v1beta1.ReasonUnsupportedByServer,
			fmt.Sprintf("the servers of these shards do not list their instances: %s", strings.Join(unsupported, ", "))}
	case len(unknown) > 0 && !mode.on:
		mode.status = metav1.ConditionFalse
		mode.problem = problem{v1beta1.ReasonNotSynced,
			fmt.Sprintf("it is not known yet what the servers of these shards can do: %s", strings.Join(unknown, ", "))}
	case len(unknown) == 0:
		mode.on, mode.status = true, metav1.ConditionTrue
		mode.problem = problem{reason: v1beta1.ReasonMachinesEnabled}
	}
	return mode
}

// hasMachines reports whether an earlier sync enabled Machines. A backup may restore
// the pool without its status; then its NstanceMachines show it.
func hasMachines(observed observation) bool {
	if observed.pool.Status.InfrastructureMachineKind != "" {
		return true
	}
	return len(observed.nstanceMachines) > 0 && len(observed.machinePools) == 1 &&
		wantsMachines(observed.pool, observed.machinePools[0])
}

// wantsMachines reports whether the instances of a pool are to have Machines.
func wantsMachines(pool *v1beta1.NstanceMachinePool, machinePool *clusterv1.MachinePool) bool {
	switch pool.Spec.MachineMode {
	case v1beta1.MachineModeAlways:
		return true
	case v1beta1.MachineModeNever:
		return false
	default:
		return capi.Autoscaled(machinePool)
	}
}
