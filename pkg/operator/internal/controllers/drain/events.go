// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// action is the action of all events.
const action = "Drain"

// maxNote is the maximum length of a note in bytes. The API server allows 1024
// (https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/).
const maxNote = 1000

// Reasons of the events of Nodes that are drained.
const (
	reasonDrainStarted   = "DrainStarted"
	reasonDrainCompleted = "DrainCompleted"
	// reasonDrainTimedOut: the deadline was reached before all Pods had left.
	reasonDrainTimedOut = "DrainTimedOut"
)

// recordStart records that a Node was cordoned for a drain. The next leader finds it
// cordoned, and does not record it again.
func (c *Controller) recordStart(key Key, node *corev1.Node, notice *shard.DeletionNotice) {
	note := fmt.Sprintf("draining for the deletion of instance %s on shard %s, reason %s", key.Instance, key.Shard, notice.Reason)
	if !notice.DeleteAt.IsZero() {
		note += ", at the latest at " + notice.DeleteAt.UTC().Format(time.RFC3339)
	}
	controller.Record(c.recorder, node, reasonDrainStarted, action, note)
}

// recordOutcome records the outcome of a drain about each Node of the instance.
func (c *Controller) recordOutcome(ctx context.Context, key Key, nodes []*corev1.Node, result outcome) {
	id := ""
	if request := audit.RequestFrom(ctx); request.ID != "" {
		id = fmt.Sprintf("; %s %s", audit.KeyRequestID, request.ID)
	}
	for _, node := range nodes {
		switch result {
		case drained:
			controller.Record(c.recorder, node, reasonDrainCompleted, action,
				fmt.Sprintf("the Pods have left, and shard %s may delete instance %s%s", key.Shard, key.Instance, id))
		case volumesAttached:
			controller.Record(c.recorder, node, reasonDrainCompleted, action,
				fmt.Sprintf("the Pods have left, some of their volumes are still attached, and shard %s may delete instance %s%s", key.Shard, key.Instance, id))
		case timedOut:
			controller.Warn(c.recorder, node, reasonDrainTimedOut, action,
				fmt.Sprintf("the drain was not finished in time, and shard %s deletes instance %s with the Pods that are left%s", key.Shard, key.Instance, id))
		}
	}
}

// recordBlockage records an event about a blockage on each Node, or on the shard group of an
// instance whose Node is not known.
func (c *Controller) recordBlockage(key Key, observed observation, b blockage) {
	if len(observed.nodes) == 0 {
		if object, err := c.shardGroups.Get(v1beta1.ShardGroupName(observed.notice.Group, key.Shard)); err == nil {
			controller.Warn(c.recorder, object, b.eventReason(), action, b.note)
		}
		return
	}
	for _, node := range observed.nodes {
		if b.pod == nil {
			controller.Warn(c.recorder, node, b.eventReason(), action, b.note)
			continue
		}
		c.recorder.Eventf(node, b.pod, corev1.EventTypeWarning, b.eventReason(), action, "%s", truncate(b.note, maxNote))
	}
}

// recordNoNode records an event about an instance whose deletion was acknowledged
// because it has no Node. If the group has no shard group, there is no object for the event.
func (c *Controller) recordNoNode(key Key, group string) {
	object, err := c.shardGroups.Get(v1beta1.ShardGroupName(group, key.Shard))
	if err != nil {
		return // the cache has no such object
	}
	controller.WarnAbout(c.recorder, object, key.Instance, v1beta1.ReasonNoNode, action,
		fmt.Sprintf("instance %s has no Node, so that it is deleted without a drain", key.Instance))
}

// truncate returns text in at most limit bytes of valid UTF-8.
func truncate(text string, limit int) string {
	return strings.ToValidUTF8(text[:min(len(text), limit)], "")
}
