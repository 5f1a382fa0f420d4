// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Build returns the status of the pools in a snapshot.
func Build(s *objects.Snapshot) Status {
	status := Status{
		APIVersion: objects.APIVersion, Kind: Kind, Pools: []Pool{}, OnDemand: []Machine{},
		Drains: []Drain{}, Unknown: s.Unknown(), OnDemandUnknown: s.NstanceMachines.Unknown,
		// Without shard groups it is not known which Nodes belong to the pools.
		DrainsUnknown: cmp.Or(s.Nodes.Unknown, s.ShardGroups.Unknown),
	}
	for _, drain := range FindDrains(s) {
		if drain.InProgress() {
			status.Drains = append(status.Drains, drain)
		}
	}
	b := builder{Snapshot: s, nodes: s.IndexNodes(), drains: status.Drains}
	for i := range s.Pools.Items {
		status.Pools = append(status.Pools, b.pool(&s.Pools.Items[i]))
	}
	slices.SortFunc(status.Pools, func(x, y Pool) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	status.OnDemand = append(status.OnDemand, b.onDemand()...)
	return status
}

// builder has the indexes that all pools need.
type builder struct {
	*objects.Snapshot
	nodes  objects.Nodes
	drains []Drain
}

func (b *builder) pool(pool *v1beta1.NstanceMachinePool) Pool {
	result := Pool{
		Namespace: pool.Namespace, Name: pool.Name, Group: string(pool.Spec.Group), Created: pool.CreationTimestamp.Time,
		Size: pool.Status.DesiredReplicas, Actual: pool.Status.Replicas, Draining: pool.Status.DrainingReplicas,
		Problems: problems(pool.Status.Conditions), Shards: []Shard{},
		ReplicasUnknown: b.MachinePools.Unknown, ShardsUnknown: b.ShardGroups.Unknown,
	}
	if machinePool := b.MachinePoolOf(pool); machinePool != nil {
		result.Replicas = machinePool.Spec.Replicas
	}
	members := b.MembersOf(pool)
	var ready int32
	known := b.ShardGroups.Unknown == "" && b.Nodes.Unknown == ""
	groups := b.ShardGroupsOf(pool)
	result.addCandidates(pool, groups)
	for _, group := range groups {
		shard := b.shard(group, onShard(members, string(group.Spec.Shard)))
		result.Shards = append(result.Shards, shard)
		if shard.ReadyNodes != nil {
			ready += *shard.ReadyNodes
		}
	}
	if known {
		result.ReadyNodes = &ready
	}
	return result
}

// onShard returns the NstanceMachines on a shard.
func onShard(members []*v1beta1.NstanceMachine, shard string) []*v1beta1.NstanceMachine {
	return slices.DeleteFunc(slices.Clone(members), func(member *v1beta1.NstanceMachine) bool {
		return cmp.Or(member.Status.Shard, string(member.Spec.Shard), member.Labels[v1beta1.LabelShard]) != shard
	})
}

// lent describes the loan of a shard group, "" if it has none.
func lent(group *v1beta1.NstanceShardGroup) string {
	if group.Spec.Loan == nil {
		return ""
	}
	return group.Spec.Loan.String()
}

func (b *builder) shard(group *v1beta1.NstanceShardGroup, members []*v1beta1.NstanceMachine) Shard {
	shard := Shard{
		Name: string(group.Spec.Shard), ShardGroup: group.Name, Created: group.CreationTimestamp.Time,
		Size: group.Spec.Size, Actual: group.Status.Replicas, Draining: group.Status.DrainingReplicas,
		Problems: problems(group.Status.Conditions), Lent: lent(group),
		Reachable: string(metav1.ConditionUnknown), Instances: b.instances(group, members),
	}
	if reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable); reachable != nil {
		shard.Reachable, shard.ReachableSince = string(reachable.Status), reachable.LastTransitionTime.Time
	}
	var ready, drained int32
	for _, instance := range shard.Instances {
		if instance.Node == nil {
			continue
		}
		if instance.Node.Ready == string(metav1.ConditionTrue) {
			ready++
		}
		if b.drainOf(instance.Node.Name) != nil {
			drained++
		}
	}
	if b.Nodes.Unknown != "" {
		return shard
	}
	shard.ReadyNodes = &ready
	if shard.Draining != nil {
		shard.UnidentifiedDrains = max(*shard.Draining-drained, 0)
	}
	return shard
}

// drainOf returns the drain of a Node, nil if the Node is not being drained.
func (b *builder) drainOf(node string) *Drain {
	at, found := slices.BinarySearchFunc(b.drains, node, func(d Drain, name string) int { return cmp.Compare(d.Node, name) })
	if !found {
		return nil
	}
	return &b.drains[at]
}

// instances returns the instances that a shard group reports, and the instances of
// NstanceMachines that do not run yet or any more.
func (b *builder) instances(group *v1beta1.NstanceShardGroup, members []*v1beta1.NstanceMachine) []Instance {
	instances := []Instance{}
	for _, id := range group.Status.ProviderIDs {
		at := slices.IndexFunc(members, func(member *v1beta1.NstanceMachine) bool {
			return providerid.Match(id, objects.ProviderIDOf(member))
		})
		var member *v1beta1.NstanceMachine
		if at >= 0 {
			member = members[at]
			members = slices.Delete(members, at, at+1)
		}
		instances = append(instances, b.instance(id, member, true))
	}
	for _, member := range members {
		instances = append(instances, b.instance(objects.ProviderIDOf(member), member, false))
	}
	slices.SortStableFunc(instances, func(x, y Instance) int { return cmp.Compare(x.Name, y.Name) })
	return instances
}

// instance returns an instance with its Node. member is nil if the instance has no
// NstanceMachine. reported is set if the shard reports that the instance runs.
func (b *builder) instance(providerID string, member *v1beta1.NstanceMachine, reported bool) Instance {
	result := Instance{Name: providerid.Key(providerID), ProviderID: providerID, State: StateRunning}
	if member != nil {
		result.Machine, result.Created = member.Name, member.CreationTimestamp.Time
		result.Name = cmp.Or(member.Status.InstanceID, result.Name, member.Name)
	}
	var nodes []*corev1.Node
	if providerID != "" {
		nodes = b.nodes.WithProviderID(providerID)
	}
	switch {
	case len(nodes) == 1:
		b.setNode(&result, nodes[0])
	case len(nodes) > 1:
		result.State = StateAmbiguous
	case b.Nodes.Unknown != "" && providerID != "":
		result.State, result.NodeUnknown = StateUnknown, b.Nodes.Unknown
	default:
		result.State = StateNoNode
	}
	switch {
	case member != nil && !member.DeletionTimestamp.IsZero():
		if b.drainOf(nodeName(result.Node)) == nil {
			result.State = StateDeleting
		}
	case member != nil && !reported && result.Node == nil && (providerID == "" || b.Nodes.Unknown == ""):
		result.State = StatePending
	}
	return result
}

func nodeName(node *Node) string {
	if node == nil {
		return ""
	}
	return node.Name
}

// setNode sets the Node of an instance, and the state by Node and drain.
func (b *builder) setNode(result *Instance, node *corev1.Node) {
	ready, since := objects.Readiness(node)
	result.Node = &Node{
		Name: node.Name, Created: node.CreationTimestamp.Time, Ready: string(ready), ReadySince: since,
		Unschedulable: node.Spec.Unschedulable,
		Type:          node.Labels[corev1.LabelInstanceTypeStable], Zone: node.Labels[corev1.LabelTopologyZone],
	}
	if _, id, ok := objects.CordonedFor(node); ok {
		result.Name = id
	}
	if result.Created.IsZero() {
		result.Created = node.CreationTimestamp.Time
	}
	if ready != corev1.ConditionTrue {
		result.State = StateNotReady
	}
	drain := b.drainOf(node.Name)
	switch {
	case drain == nil:
	case drain.State == DrainUnknown:
		result.State, result.DrainUnknown = string(DrainRunning), drain.WhyUnknown()
	default:
		result.State = string(drain.State)
	}
}

// onDemand returns the NstanceMachines that belong to no pool, sorted by group and name.
func (b *builder) onDemand() []Machine {
	var machines []Machine
	for i := range b.NstanceMachines.Items {
		machine := &b.NstanceMachines.Items[i]
		if objects.PoolOf(machine) == nil {
			machines = append(machines, b.single(machine))
		}
	}
	slices.SortFunc(machines, func(x, y Machine) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Group, y.Group), cmp.Compare(x.Machine, y.Machine))
	})
	return machines
}

func (b *builder) single(machine *v1beta1.NstanceMachine) Machine {
	running := meta.IsStatusConditionTrue(machine.Status.Conditions, v1beta1.ConditionReady)
	result := Machine{
		Instance:  b.instance(objects.ProviderIDOf(machine), machine, running),
		Namespace: machine.Namespace, Group: string(machine.Spec.GroupRef.Name),
		Shard:    cmp.Or(machine.Status.Shard, string(machine.Spec.Shard)),
		Problems: problems(machine.Status.Conditions),
	}
	if name := machine.Annotations[v1beta1.AnnotationPodName]; name != "" {
		result.Pod = machine.Annotations[v1beta1.AnnotationPodNamespace] + "/" + name
	}
	return result
}

// trueIsNotable are the conditions that are worth a line if they are True: what goes on, and
// problems.
var trueIsNotable = []string{
	v1beta1.ConditionPaused, v1beta1.ConditionScalingUp, v1beta1.ConditionScalingDown, v1beta1.ConditionRollingOut,
	v1beta1.ConditionRemediating, v1beta1.ConditionServerDeleted,
}

// problems returns the conditions that report a problem or what goes on, Ready first.
func problems(conditions []metav1.Condition) []Condition {
	var found []Condition
	for _, condition := range conditions {
		good := metav1.ConditionTrue
		if slices.Contains(trueIsNotable, condition.Type) {
			good = metav1.ConditionFalse
		}
		stopped := condition.Type == v1beta1.ConditionRollingOut && condition.Reason != v1beta1.ReasonNotRollingOut
		if condition.Status == good && !stopped {
			continue
		}
		found = append(found, Condition{
			Type: condition.Type, Status: string(condition.Status), Reason: condition.Reason,
			Message: condition.Message, Since: condition.LastTransitionTime.Time,
		})
	}
	slices.SortStableFunc(found, func(a, b Condition) int { return rank(a) - rank(b) })
	return found
}

// rank puts Ready first.
func rank(condition Condition) int {
	if condition.Type == v1beta1.ConditionReady {
		return 0
	}
	return 1
}
