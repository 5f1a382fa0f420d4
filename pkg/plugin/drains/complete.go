// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/drainnote"
	"nstance.dev/operator/pkg/plugin/objects"
)

// eventExpired is why reason and deadline are not known. The API server deletes events.
const eventExpired = "the event DrainStarted of the Node does not exist any more"

// deletedReason is the reason of a drain that only Cluster API has requested.
const deletedReason = "machine-deleted"

// complete adds what other objects say about a drain.
func (d *Drain) complete(s *objects.Snapshot, node *corev1.Node) {
	group, reported := d.locate(s, node)
	d.addReason(s, node)
	d.addMessages(s, node, group)
	d.addPods(s, node)
	d.addVolumes(s)
	switch {
	case !reported && s.ShardGroups.Unknown == "" && s.NstanceMachines.Unknown == "":
		d.State = Unreported
	case d.blocked, d.hasBlocker():
		d.State = Blocked
	case d.PodsUnknown != "", d.hasUnknown():
		d.State = Unknown
	case len(d.Pods) > 0:
		d.State = Draining
	default:
		d.State = Drained
	}
}

func (d *Drain) hasBlocker() bool {
	return slices.ContainsFunc(d.Pods, func(pod Pod) bool { return len(pod.Blockers) > 0 })
}

func (d *Drain) hasUnknown() bool {
	return slices.ContainsFunc(d.Pods, func(pod Pod) bool { return pod.Unknown != "" })
}

// addReason adds reason and deadline of the shard, which are in an event only.
func (d *Drain) addReason(s *objects.Snapshot, node *corev1.Node) {
	if !slices.Contains(d.By, ByShard) {
		d.Reason = deletedReason
		return
	}
	for _, event := range EventsOf(s, node, drainnote.Reason) {
		note, ok := drainnote.Parse(event.Note)
		if !ok || note.Shard != d.Shard || note.Instance != d.Instance {
			continue
		}
		d.Reason = note.Reason
		if d.Deadline.IsZero() || !note.DeleteAt.IsZero() && note.DeleteAt.Before(d.Deadline) {
			d.Deadline = note.DeleteAt
		}
		if d.Since.IsZero() {
			d.Since = LastSeen(&event)
		}
		return
	}
	d.ReasonUnknown = s.NodeEvents.Unknown
	if d.ReasonUnknown == "" {
		d.ReasonUnknown = eventExpired
	}
	if d.Deadline.IsZero() {
		d.DeadlineUnknown = d.ReasonUnknown
	}
}

// addMessages adds what the condition of the shard group and the events of the Node report
// as blocking. The condition has at most three drains; an event stays when the blockage is
// over.
func (d *Drain) addMessages(s *objects.Snapshot, node *corev1.Node, group *v1beta1.NstanceShardGroup) {
	if !slices.Contains(d.By, ByShard) || group == nil {
		return
	}
	progressing := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionDrainsProgressing)
	if progressing == nil || progressing.Status != metav1.ConditionFalse {
		return
	}
	prefix := "Node " + node.Name
	for part := range strings.SplitSeq(progressing.Message, "; ") {
		if strings.HasPrefix(part, prefix+":") || strings.HasPrefix(part, prefix+" ") {
			d.Messages, d.blocked = append(d.Messages, part), true
		}
	}
	if d.blocked || !strings.Contains(progressing.Message, "; and ") {
		return
	}
	for _, event := range EventsOf(s, node, v1beta1.ReasonDrainBlocked) {
		if !LastSeen(&event).Before(d.Since) {
			d.Messages, d.blocked = append(d.Messages, event.Note), true
			return
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

// EventsOf returns the events with a reason about a Node, the last one first.
func EventsOf(s *objects.Snapshot, node *corev1.Node, reason string) []eventsv1.Event {
	var found []eventsv1.Event
	for _, event := range s.NodeEvents.Items {
		if event.Reason == reason && event.Regarding.Name == node.Name && event.Regarding.UID == node.UID {
			found = append(found, event)
		}
	}
	slices.SortFunc(found, func(a, b eventsv1.Event) int { return LastSeen(&b).Compare(LastSeen(&a)) })
	return found
}
