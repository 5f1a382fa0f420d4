// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package plan builds and prints what would happen to a pool with another number of replicas or
// another configuration. The functions of the operator make its decisions, and the
// order in which the shards delete instances is the order that they report.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/status"
)

// Plan is the output of "kubectl nstance plan".
type Plan struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Pool       string `json:"pool"`
	// Replicas are the present replicas of the MachinePool, nil if they are not known.
	Replicas *int32 `json:"replicas,omitempty"`
	// NextReplicas are the replicas of the plan.
	NextReplicas int32 `json:"nextReplicas"`
	// Blocked is why the sizes stay, "" if they do not.
	Blocked string   `json:"blocked,omitempty"`
	Shards  []Shard  `json:"shards"`
	Changes []Change `json:"changes,omitempty"`
	// Guards are the settings that divide the scale-down into steps.
	Guards []string `json:"guards,omitempty"`
	// Rotation is how the instances that are replaced are replaced, as the pool decides it. Without a
	// policy each shard replaces one at a time.
	Rotation []string `json:"rotation,omitempty"`
	// Nodes are the Nodes of the named instances on which a Pod blocks the drain, or on which that
	// is not known.
	Nodes []Node `json:"nodes,omitempty"`
	// Notes are what the plan does not know, in sentences.
	Notes []string `json:"notes,omitempty"`
	// Unknown lists the objects that could not be read, such as "forbidden to list pods".
	Unknown []string `json:"unknown,omitempty"`
}

// Kind is the kind of Plan.
const Kind = "Plan"

// Shard is the part of a plan that is on one shard.
type Shard struct {
	Name string `json:"name"`
	Size int32  `json:"size"`
	Next int32  `json:"next"`
	// RemoveFirst are the ids of the instances that the operator names to the shard.
	RemoveFirst []string `json:"removeFirst,omitempty"`
	// Leaves are the instances that the shard deletes, in order. They are named as far as they
	// are known.
	Leaves []Instance `json:"leaves"`
	// NotRunning is how many of the instances that leave do not run yet.
	NotRunning int32 `json:"notRunning,omitempty"`
	// Selected is how many instances leave that only the shard knows.
	Selected int32 `json:"selected,omitempty"`
	// Exact is set if exactly the named instances leave, unless something else changes before.
	Exact bool `json:"exact"`
	// Replaced are the instances that the shard replaces, because they are outdated or unhealthy.
	Replaced []Instance `json:"replaced,omitempty"`
	// ReportedAt is when the shard has reported last, if it is not connected.
	ReportedAt time.Time `json:"reportedAt,omitzero"`
	// Removed is set if the pool does not name the shard any more.
	Removed bool `json:"removed,omitempty"`
}

// Instance is an instance that leaves.
type Instance struct {
	Name       string `json:"name"`
	ProviderID string `json:"providerID,omitempty"`
	Node       string `json:"node,omitempty"`
	// Reason is why the instance leaves: deletion-candidate, not-running, oldest, or a reason that
	// the shard reports.
	Reason string `json:"reason"`
}

// Node is a Node that cannot be drained now, or of which that is not known.
type Node struct {
	Name string `json:"name"`
	// Pods are the Pods that cannot be evicted now, or of which that is not known.
	Pods        []status.Pod `json:"pods"`
	PodsUnknown string       `json:"podsUnknown,omitempty"`
}

// Reasons of an instance that no shard reports.
const (
	// ReasonCandidate: its Machine is annotated for deletion, or is being deleted.
	ReasonCandidate = "deletion-candidate"
	// ReasonNotRunning: it does not run yet.
	ReasonNotRunning = "not-running"
	// ReasonOldest: it is the oldest.
	ReasonOldest = "oldest"
)

// Options select what is planned.
type Options struct {
	// Pool is the name of the pool.
	Pool string
	// Replicas are the wanted replicas, nil for the present replicas of the MachinePool.
	Replicas *int32
	// Changed is the pool as it would be, nil if it does not change.
	Changed *v1beta1.NstanceMachinePool
}

// Build returns the plan for a pool in a snapshot.
func Build(s *objects.Snapshot, options Options) (Plan, error) {
	at := slices.IndexFunc(s.Pools.Items, func(pool v1beta1.NstanceMachinePool) bool { return pool.Name == options.Pool })
	if at < 0 {
		return Plan{}, fmt.Errorf("plan pool %s: the pool was not read", options.Pool)
	}
	before := &s.Pools.Items[at]
	b := builder{Snapshot: s, pool: before, nodes: s.IndexNodes(), plan: Plan{
		APIVersion: objects.APIVersion, Kind: Kind, Namespace: before.Namespace, Pool: before.Name, Shards: []Shard{}, Unknown: s.Unknown(),
	}}
	if options.Changed != nil {
		b.pool = options.Changed
		b.plan.Changes = changes(before, b.pool)
	}
	machinePool := b.MachinePoolOf(before)
	if machinePool != nil {
		b.plan.Replicas = machinePool.Spec.Replicas
	}
	wanted := cmp.Or(options.Replicas, b.plan.Replicas)
	if wanted == nil {
		wanted = ptr.To(ptr.Deref(before.Status.DesiredReplicas, 0))
		b.plan.Blocked = cmp.Or(b.MachinePools.Unknown, "no MachinePool with replicas refers to the pool")
	}
	b.plan.NextReplicas = *wanted
	b.addShards()
	b.plan.Rotation = b.rotation()
	b.plan.Notes = append(b.plan.Notes, b.notes()...)
	return b.plan, nil
}

// builder makes one plan.
type builder struct {
	*objects.Snapshot
	// pool is the pool as it would be.
	pool  *v1beta1.NstanceMachinePool
	nodes objects.Nodes
	plan  Plan
}

// addShards adds the shards with their sizes and the instances that leave.
func (b *builder) addShards() {
	input := b.input()
	b.plan.Blocked = cmp.Or(b.plan.Blocked, b.ShardGroups.Unknown, b.undivided(&input), input.BelowMinimum())
	division := input.Divide()
	sizes, removeFirst := division.Sizes, division.RemoveFirst
	if b.plan.Blocked != "" {
		sizes = make([]int32, len(input.Shards))
		for i := range input.Shards {
			sizes[i], removeFirst[i] = input.Shards[i].Size, input.Shards[i].RemoveFirst
		}
	}
	for i := range input.Shards {
		b.plan.Shards = append(b.plan.Shards, b.shard(planned{
			group: input.Groups[i], shard: &input.Shards[i], machines: input.Machines, next: sizes[i], removeFirst: removeFirst[i],
		}))
	}
	if b.plan.Blocked == "" {
		b.plan.Guards = guards(b.pool, &input)
	}
	for _, group := range b.ShardGroupsOf(b.pool) {
		if slices.Contains(b.pool.Spec.Shards, group.Spec.Shard) {
			continue
		}
		shard := poolplan.NewShard(b.pool, string(group.Spec.Shard), group, 0, 0)
		removed := b.shard(planned{group: group, shard: &shard})
		removed.Removed = true
		b.plan.Shards = append(b.plan.Shards, removed)
	}
	b.addNodes()
}

// undivided returns why the operator divides no replicas, "" if it does.
func (b *builder) undivided(input *poolplan.Pool) string {
	paused := meta.FindStatusCondition(b.pool.Status.Conditions, v1beta1.ConditionPaused)
	ready := meta.FindStatusCondition(b.pool.Status.Conditions, v1beta1.ConditionReady)
	machinePool := b.MachinePoolOf(b.pool)
	// A shard that has a shard group keeps its size while it is not configured.
	newShard := slices.Contains(input.Groups, nil)
	switch {
	case !b.pool.DeletionTimestamp.IsZero():
		return "the pool is being deleted"
	case machinePool != nil && !machinePool.DeletionTimestamp.IsZero():
		return fmt.Sprintf("MachinePool %q is being deleted", machinePool.Name)
	case input.Replicas > v1beta1.MaxReplicas:
		return fmt.Sprintf("a pool has at most %d replicas", v1beta1.MaxReplicas)
	case paused != nil && paused.Status == metav1.ConditionTrue:
		return "the pool is paused: " + paused.Message
	case ready == nil || ready.Status != metav1.ConditionFalse:
		return ""
	case slices.Contains(undividedReasons, ready.Reason) || ready.Reason == v1beta1.ReasonUnknownShard && newShard:
		return fmt.Sprintf("%s: %s", ready.Reason, ready.Message)
	}
	return ""
}

// undividedReasons are reasons of the condition Ready of a pool whose replicas the operator does not
// divide, and that no shard group has.
var undividedReasons = []string{v1beta1.ReasonGroupInUse, v1beta1.ReasonOutdatedObject, v1beta1.ReasonMachinePoolConflict}

// guards returns the guards of a scale-down, nil if it has none or is done at once.
func guards(pool *v1beta1.NstanceMachinePool, input *poolplan.Pool) []string {
	settings := pool.Spec.ScaleDown
	var current int32
	for _, shard := range input.Shards {
		current += shard.Size
	}
	left := current - max(input.Replicas, 0)
	if settings == nil || left <= 0 {
		return nil
	}
	var found []string
	if n := poolplan.AtOnce(settings, current); n < left {
		found = append(found, fmt.Sprintf("maxInFlight %s: at most %d of %d at once", settings.MaxInFlight, n, left))
	}
	if seconds := ptr.Deref(settings.StabilizationSeconds, 0); seconds > 0 {
		found = append(found, fmt.Sprintf("stabilizationSeconds %d: not before the replicas were lowered for so long", seconds))
	}
	if seconds := ptr.Deref(settings.MinReadySeconds, 0); seconds > 0 {
		found = append(found, fmt.Sprintf("minReadySeconds %d: not before the Nodes that remain are Ready for so long", seconds))
	}
	for _, state := range settings.PauseWhile {
		found = append(found, fmt.Sprintf("pauseWhile %s", state))
	}
	return found
}

// LeavingNodes returns the names of the Nodes of the instances that leave, sorted.
func (p *Plan) LeavingNodes() []string {
	var names []string
	for _, shard := range p.Shards {
		for _, instance := range shard.Leaves {
			if instance.Node != "" {
				names = append(names, instance.Node)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// addNodes adds the Nodes of the instances that leave, if something blocks their drains.
func (b *builder) addNodes() {
	for _, name := range b.plan.LeavingNodes() {
		drain := status.Preview(b.Snapshot, b.Node(name))
		node := Node{Name: name, Pods: []status.Pod{}, PodsUnknown: drain.PodsUnknown}
		for _, pod := range drain.Pods {
			if len(pod.Blockers) > 0 || pod.Unknown != "" || pod.MayComplete != "" {
				node.Pods = append(node.Pods, pod)
			}
		}
		if len(node.Pods) > 0 || node.PodsUnknown != "" {
			b.plan.Nodes = append(b.plan.Nodes, node)
		}
	}
}

// IsBlocked reports whether the plan cannot be carried out now: the sizes stay, or a Pod cannot be
// evicted.
func (p *Plan) IsBlocked() bool {
	return p.Blocked != "" || slices.ContainsFunc(p.Nodes, func(node Node) bool {
		return slices.ContainsFunc(node.Pods, func(pod status.Pod) bool { return len(pod.Blockers) > 0 })
	})
}
