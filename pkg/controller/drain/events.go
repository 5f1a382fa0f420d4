// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// action is the action of all events.
const action = "Drain"

// maxNote is the maximum length of a note in bytes. The API server allows 1024.
const maxNote = 1000

// recordBlockage records an event about a blockage on each Node.
func (c *Controller) recordBlockage(nodes []*corev1.Node, b blockage) {
	for _, node := range nodes {
		if b.pod == nil {
			controller.Warn(c.recorder, node, b.reason, action, b.note)
			continue
		}
		c.recorder.Eventf(node, b.pod, corev1.EventTypeWarning, b.reason, action, "%s", truncate(b.note))
	}
}

// recordNoNode records an event about an instance whose deletion was acknowledged
// because it has no Node. An instance of a group without a shard group has none.
func (c *Controller) recordNoNode(key Key, group string) {
	object, err := c.shardGroups.Get(v1beta1.ShardGroupName(group, key.Shard))
	if err != nil {
		return // the cache has no such object
	}
	controller.Warn(c.recorder, object, v1beta1.ReasonNoNode, action,
		fmt.Sprintf("instance %s has no Node, so that it is deleted without a drain", key.Instance))
}

// truncate returns note in at most maxNote bytes.
func truncate(note string) string {
	return strings.ToValidUTF8(note[:min(len(note), maxNote)], "")
}
