// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// DrainState is the progress of a drain.
type DrainState string

const (
	// DrainRunning means: Pods are left, and nothing is known to block them.
	DrainRunning DrainState = "Draining"
	// DrainBlocked means: the operator reports a blockage, or a Pod cannot be evicted or does
	// not terminate.
	DrainBlocked DrainState = "Blocked"
	// DrainDone means: all Pods that have to leave have left.
	DrainDone DrainState = "Drained"
	// DrainUnreported means: no object that was read has the instance any more. The shard has
	// deleted it, or it belongs to another namespace.
	DrainUnreported DrainState = "Unreported"
	// DrainUnknown means: the Pods, or the reasons that block them, are not known.
	DrainUnknown DrainState = "Unknown"
)

// Requesters of a drain.
const (
	ByShard      = "Shard"
	ByClusterAPI = "ClusterAPI"
)

// Drain is a Node that is being emptied, and the Pods that are left (docs/drains.md).
type Drain struct {
	Node string `json:"node"`
	// By lists the requesters of the drain: Shard, ClusterAPI, or both.
	By    []string   `json:"by"`
	State DrainState `json:"state"`
	// Namespace and Pool are empty for an instance of no pool, or if they are not known.
	Namespace string `json:"namespace,omitempty"`
	Pool      string `json:"pool,omitempty"`
	Shard     string `json:"shard,omitempty"`
	Instance  string `json:"instance,omitempty"`
	Machine   string `json:"machine,omitempty"`
	// PoolUnknown is why it is not known whether the instance belongs to a pool.
	PoolUnknown string `json:"poolUnknown,omitempty"`

	// Reason is why the instance is to be deleted. If it is empty, ReasonUnknown says why.
	Reason        string    `json:"reason,omitempty"`
	ReasonUnknown string    `json:"reasonUnknown,omitempty"`
	Since         time.Time `json:"since,omitzero"`
	// Deadline is when the instance is deleted in any case. If it is zero and
	// DeadlineUnknown is empty, the drain has no limit.
	Deadline        time.Time `json:"deadline,omitzero"`
	DeadlineUnknown string    `json:"deadlineUnknown,omitempty"`

	// Blockage is the entry of the shard group about the drain, nil if the operator does not
	// report the drain as blocked. If the shard group does not list all blocked drains,
	// BlockageUnknown says so.
	Blockage        *v1beta1.BlockedDrain `json:"blockage,omitempty"`
	BlockageUnknown string                `json:"blockageUnknown,omitempty"`
	// Messages are texts of the operator and of Cluster API about the drain, for people.
	Messages []string `json:"messages,omitempty"`
	// Pods are the Pods that have to leave and are left.
	Pods        []Pod  `json:"pods"`
	PodsUnknown string `json:"podsUnknown,omitempty"`
	// Staying is the number of Pods that do not have to leave.
	Staying int `json:"staying"`
	// Volumes are the attached volumes, including the volumes of Pods that stay.
	Volumes        []string `json:"volumes"`
	VolumesUnknown string   `json:"volumesUnknown,omitempty"`
}

// Pod is a Pod that has to leave a Node.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// TerminatesAt is when the grace period of a Pod that is being deleted is over.
	TerminatesAt time.Time `json:"terminatesAt,omitzero"`
	Finalizers   []string  `json:"finalizers,omitempty"`
	// Order puts Pods in order: a Pod is evicted when no Pod of a lower order is left. Rule names the
	// label, the annotation or the MachineDrainRule of the Pod, "" without any (docs/drains.md#rules).
	Order int32  `json:"order,omitempty"`
	Rule  string `json:"rule,omitempty"`
	// MayComplete names the rule because of which the Pod is not evicted
	// while there is time (docs/drains.md#rules), "" if it is evicted.
	MayComplete string `json:"mayComplete,omitempty"`
	// Blockers are the reasons that block the Pod, empty if its next eviction may succeed.
	Blockers []string `json:"blockers,omitempty"`
	// Unknown is why it is not known whether something blocks the Pod.
	Unknown string `json:"unknown,omitempty"`
}

// InProgress reports whether the instance is not known to be deleted.
func (d *Drain) InProgress() bool { return d.State != DrainUnreported }

// WhyUnknown returns why the state is DrainUnknown.
func (d *Drain) WhyUnknown() string {
	why := d.PodsUnknown
	for _, pod := range d.Pods {
		why = cmp.Or(why, pod.Unknown)
	}
	return why
}

// FindDrains returns the drains of the Nodes in a snapshot, sorted by Node.
func FindDrains(s *objects.Snapshot) []Drain {
	var found []Drain
	begun := begin(s)
	for i := range s.Nodes.Items {
		node := &s.Nodes.Items[i]
		if d := begun[node.Name]; d != nil {
			d.complete(s, node)
			found = append(found, *d)
		}
	}
	slices.SortFunc(found, func(a, b Drain) int { return cmp.Compare(a.Node, b.Node) })
	return found
}

// Preview returns the drain of a Node as it would be if its shard deleted the instance now: the Pods
// that would have to leave, and what blocks them.
func Preview(s *objects.Snapshot, node *corev1.Node) Drain {
	d := Drain{Node: node.Name, By: []string{ByShard}, Pods: []Pod{}, Volumes: []string{}}
	d.locate(s, node)
	d.addPods(s, node)
	d.addVolumes(s)
	return d
}

// DrainedNodes returns the names of the Nodes that FindDrains returns, sorted. It needs neither
// Pods nor VolumeAttachments.
func DrainedNodes(s *objects.Snapshot) []string {
	var names []string
	begun := begin(s)
	for i := range s.Nodes.Items {
		if name := s.Nodes.Items[i].Name; begun[name] != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// begin returns the drains by Node, with the requesters and the start of each.
func begin(s *objects.Snapshot) map[string]*Drain {
	found := map[string]*Drain{}
	at := func(node string) *Drain {
		if found[node] == nil {
			found[node] = &Drain{Node: node, Pods: []Pod{}, Volumes: []string{}}
		}
		return found[node]
	}
	for i := range s.Nodes.Items {
		node := &s.Nodes.Items[i]
		if shard, instance, ok := objects.CordonedFor(node); ok {
			at(node.Name).addShard(shard, instance, cordonedSince(node))
		}
	}
	nodes := s.IndexNodes()
	for i := range s.NstanceMachines.Items {
		machine := &s.NstanceMachines.Items[i]
		condition := meta.FindStatusCondition(machine.Status.Conditions, v1beta1.ConditionDrainsProgressing)
		if condition == nil || condition.Reason == v1beta1.ReasonNoDrains {
			continue
		}
		// A Node that another client has cordoned has no annotation.
		for _, node := range nodes.WithProviderID(objects.ProviderIDOf(machine)) {
			at(node.Name).addShard(machine.Status.Shard, machine.Status.InstanceID, condition.LastTransitionTime.Time)
		}
	}
	for i := range s.Machines.Items {
		machine := &s.Machines.Items[i]
		if name := machine.Status.NodeRef.Name; name != "" && drainedByClusterAPI(machine) {
			at(name).addMachine(machine)
		}
	}
	return found
}

func (d *Drain) addShard(shard, instance string, since time.Time) {
	if slices.Contains(d.By, ByShard) {
		return
	}
	d.By = append(d.By, ByShard)
	d.Shard, d.Instance, d.Since = shard, instance, since
}

// drainedByClusterAPI reports whether Cluster API drains the Node of a Machine, or waits for
// its volumes.
func drainedByClusterAPI(machine *clusterv1.Machine) bool {
	if machine.DeletionTimestamp.IsZero() {
		return false
	}
	deleting := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineDeletingCondition)
	return deleting != nil && (deleting.Reason == clusterv1.MachineDeletingDrainingNodeReason ||
		deleting.Reason == clusterv1.MachineDeletingWaitingForPreDrainHookReason ||
		deleting.Reason == clusterv1.MachineDeletingWaitingForVolumeDetachReason)
}

func (d *Drain) addMachine(machine *clusterv1.Machine) {
	d.By = append(d.By, ByClusterAPI)
	d.Namespace, d.Machine = machine.Namespace, machine.Name
	started := machine.DeletionTimestamp.Time
	if deletion := machine.Status.Deletion; deletion != nil && !deletion.NodeDrainStartTime.IsZero() {
		started = deletion.NodeDrainStartTime.Time
	}
	if d.Since.IsZero() {
		d.Since = started
	}
	if timeout := machine.Spec.Deletion.NodeDrainTimeoutSeconds; timeout != nil && *timeout > 0 {
		d.Deadline = started.Add(time.Duration(*timeout) * time.Second)
	}
	if deleting := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineDeletingCondition); deleting != nil && deleting.Message != "" {
		d.Messages = append(d.Messages, strings.Join(strings.Fields(deleting.Message), " "))
	}
}

// cordonedSince returns when the operator has annotated a Node for its drain, zero if the
// time is not known.
func cordonedSince(node *corev1.Node) time.Time {
	writer, _ := objects.WriterOf(node, "f:metadata", "f:annotations", "f:"+v1beta1.AnnotationCordonedFor)
	return writer.At
}

// locate sets the pool of a drain, and returns the shard group and whether an object has the
// instance.
func (d *Drain) locate(s *objects.Snapshot, node *corev1.Node) (group *v1beta1.NstanceShardGroup, reported bool) {
	group = s.ShardGroupOf(node.Spec.ProviderID, d.Shard)
	machine := s.NstanceMachineOf(node.Spec.ProviderID)
	var owner *metav1.OwnerReference
	switch {
	case group != nil:
		d.Namespace, d.Shard, owner = group.Namespace, string(group.Spec.Shard), objects.PoolOf(group)
	case machine != nil:
		d.Namespace, owner = machine.Namespace, objects.PoolOf(machine)
		d.Shard = cmp.Or(d.Shard, machine.Status.Shard)
	}
	if machine != nil {
		d.Machine = machine.Name
		d.Instance = cmp.Or(d.Instance, machine.Status.InstanceID)
	}
	switch {
	case owner != nil:
		d.Pool = owner.Name
	case group == nil && machine == nil:
		d.PoolUnknown = cmp.Or(s.ShardGroups.Unknown, s.NstanceMachines.Unknown)
	}
	return group, group != nil || machine != nil || slices.Contains(d.By, ByClusterAPI)
}

// notAnnotated is why reason and deadline of a shard are not known: the operator annotates a
// Node with them when it cordons the Node.
const notAnnotated = "another client had cordoned the Node, so the operator did not annotate it"

// noReason is why the reason is not known if the annotation is missing or empty.
const noReason = "the Node has no annotation " + v1beta1.AnnotationDrainReason

// deletedReason is the reason of a drain that only Cluster API has requested.
const deletedReason = "machine-deleted"

// complete adds to a drain the facts of other objects.
func (d *Drain) complete(s *objects.Snapshot, node *corev1.Node) {
	group, reported := d.locate(s, node)
	d.addNotice(node)
	d.addBlockage(group)
	d.addWaiting(group)
	d.addPods(s, node)
	d.addVolumes(s)
	switch {
	case !reported && s.ShardGroups.Unknown == "" && s.NstanceMachines.Unknown == "":
		d.State = DrainUnreported
	case d.Blockage != nil, d.hasBlocker():
		d.State = DrainBlocked
	case d.PodsUnknown != "", d.hasUnknown():
		d.State = DrainUnknown
	case len(d.Pods) > 0:
		d.State = DrainRunning
	default:
		d.State = DrainDone
	}
}

func (d *Drain) hasBlocker() bool {
	return slices.ContainsFunc(d.Pods, func(pod Pod) bool { return len(pod.Blockers) > 0 })
}

func (d *Drain) hasUnknown() bool {
	return slices.ContainsFunc(d.Pods, func(pod Pod) bool { return pod.Unknown != "" })
}

// addNotice adds reason and deadline of the shard, from the annotations of the Node.
func (d *Drain) addNotice(node *corev1.Node) {
	if !slices.Contains(d.By, ByShard) {
		d.Reason = deletedReason
		return
	}
	if shard, instance, ok := objects.CordonedFor(node); !ok || shard != d.Shard || instance != d.Instance {
		d.ReasonUnknown = notAnnotated
		if d.Deadline.IsZero() {
			d.DeadlineUnknown = notAnnotated
		}
		return
	}
	d.Reason = node.Annotations[v1beta1.AnnotationDrainReason]
	if d.Reason == "" {
		d.ReasonUnknown = noReason
	}
	value, limited := node.Annotations[v1beta1.AnnotationDeleteAt]
	if !limited {
		return
	}
	deleteAt, err := time.Parse(time.RFC3339, value)
	switch {
	case err == nil && (d.Deadline.IsZero() || deleteAt.Before(d.Deadline)):
		d.Deadline = deleteAt
	case err != nil && d.Deadline.IsZero():
		d.DeadlineUnknown = fmt.Sprintf("the annotation %s of the Node is no time: %q", v1beta1.AnnotationDeleteAt, value)
	}
}

// addBlockage adds the entry of the shard group about the drain.
func (d *Drain) addBlockage(group *v1beta1.NstanceShardGroup) {
	if !slices.Contains(d.By, ByShard) || group == nil {
		return
	}
	entries := group.Status.BlockedDrains
	at := slices.IndexFunc(entries, func(entry v1beta1.BlockedDrain) bool { return entry.Instance == d.Instance })
	if at >= 0 {
		d.Blockage = &entries[at]
		d.Messages = append(d.Messages, entries[at].Message)
		return
	}
	if blocked := group.Status.BlockedReplicas; blocked != nil && int(*blocked) > len(entries) {
		d.BlockageUnknown = fmt.Sprintf("the shard group lists %d of %d blocked drains", len(entries), *blocked)
	}
}

// addWaiting adds what the operator reports that the drain waits for: the condition of the shard
// group has a sentence for each drain, up to its limit.
func (d *Drain) addWaiting(group *v1beta1.NstanceShardGroup) {
	if !slices.Contains(d.By, ByShard) || group == nil {
		return
	}
	condition := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionDrainsProgressing)
	if condition == nil || condition.Reason != v1beta1.ReasonDraining {
		return
	}
	for message := range strings.SplitSeq(condition.Message, "; ") {
		if strings.HasPrefix(message, "Node "+d.Node+": ") {
			d.Messages = append(d.Messages, message)
		}
	}
}

// addVolumes adds the volumes that are attached to the Node.
func (d *Drain) addVolumes(s *objects.Snapshot) {
	d.VolumesUnknown = s.Attachments.Unknown
	for _, attachment := range s.Attachments.Items {
		if attachment.Spec.NodeName != d.Node {
			continue
		}
		name := attachment.Name
		if volume := attachment.Spec.Source.PersistentVolumeName; volume != nil {
			name = *volume
		}
		d.Volumes = append(d.Volumes, name)
	}
	slices.Sort(d.Volumes)
}
