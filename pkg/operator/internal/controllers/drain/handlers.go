// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
)

// noticeChanged enqueues the drain of an instance whose notice has changed.
func (c *Controller) noticeChanged(shard, instance string) {
	c.queue.Add(Key{Shard: shard, Instance: instance})
}

// shardChanged enqueues all drains of a shard whose connection or watch of notices
// has changed.
func (c *Controller) shardChanged(shard string) {
	for _, notice := range c.notices.List(shard) {
		c.queue.Add(Key{Shard: shard, Instance: notice.InstanceID})
	}
	for _, node := range controller.Indexed[corev1.Node](c.nodeIndex, byCordon, shard) {
		if key, ok := cordonedFor(node); ok {
			c.queue.Add(key)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.states {
		if key.Shard == shard {
			c.queue.Add(key)
		}
	}
}

// keys returns the drains that shards have announced, and the drains that Nodes were cordoned
// for.
func (c *Controller) keys(shards []string) []Key {
	keys := sets.New[Key]()
	for _, id := range shards {
		for _, notice := range c.notices.List(id) {
			keys.Insert(Key{Shard: id, Instance: notice.InstanceID})
		}
	}
	for _, object := range c.nodeIndex.List() {
		if node, ok := object.(*corev1.Node); ok {
			if key, ok := cordonedFor(node); ok {
				keys.Insert(key)
			}
		}
	}
	return keys.UnsortedList()
}

// nodeChanged handles all changes of Nodes. Most of them are heartbeats, which are
// not relevant to a drain.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if before != nil && after != nil && before.ResourceVersion != after.ResourceVersion && !relevantChange(before, after) {
		return
	}
	for _, node := range []*corev1.Node{before, after} {
		if node != nil {
			c.enqueueNode(node)
		}
	}
}

// relevantChange reports whether a change of a Node can affect a drain.
func relevantChange(before, after *corev1.Node) bool {
	return before.UID != after.UID ||
		before.Spec.ProviderID != after.Spec.ProviderID ||
		before.Spec.Unschedulable != after.Spec.Unschedulable ||
		before.Labels[v1beta1.LabelShard] != after.Labels[v1beta1.LabelShard] ||
		unreachable(before) != unreachable(after) ||
		slices.ContainsFunc(annotationKeys, func(name string) bool { return before.Annotations[name] != after.Annotations[name] })
}

// enqueueNode enqueues the drains of all instances that a Node may be, and the drain
// that it was cordoned for.
func (c *Controller) enqueueNode(node *corev1.Node) {
	if key, ok := cordonedFor(node); ok {
		c.queue.Add(key)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.byProviderID[providerid.Key(node.Spec.ProviderID)] {
		c.queue.Add(key)
	}
}

// volumeChanged handles all changes of VolumeAttachments. Only a deletion can
// unblock a drain.
func (c *Controller) volumeChanged(before, after *storagev1.VolumeAttachment) {
	if after != nil {
		return
	}
	if object, exists, err := c.nodeIndex.GetByKey(before.Spec.NodeName); err == nil && exists {
		if node, ok := object.(*corev1.Node); ok {
			c.enqueueNode(node)
		}
	}
}

// ruleChanged enqueues all drains: a rule may apply to Pods of any of them.
func (c *Controller) ruleChanged(_, _ *clusterv1.MachineDrainRule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.states {
		c.queue.Add(key)
	}
}

// delayUntil returns the delay of a key that is due at a time, 0 for the zero time.
func delayUntil(due, now time.Time) time.Duration {
	if due.IsZero() {
		return 0
	}
	return max(due.Sub(now), minRequeue)
}

const (
	// byCordon is the index of Nodes by the drain that they are cordoned for, and by
	// its shard.
	byCordon = "cordonedFor"
	// byNode is the index of VolumeAttachments by Node.
	byNode = "node"
)

var nodeIndexers = cache.Indexers{byCordon: func(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil
	}
	if key, ok := cordonedFor(node); ok {
		return []string{key.String(), key.Shard}, nil
	}
	return nil, nil
}}

var volumeIndexers = cache.Indexers{byNode: func(obj any) ([]string, error) {
	if attachment, ok := obj.(*storagev1.VolumeAttachment); ok {
		return []string{attachment.Spec.NodeName}, nil
	}
	return nil, nil
}}

// nodesCordonedFor returns the cached Nodes that were cordoned for a drain.
func (c *Controller) nodesCordonedFor(key Key) []*corev1.Node {
	return controller.Indexed[corev1.Node](c.nodeIndex, byCordon, key.String())
}

// Key identifies a drain.
type Key struct {
	// Shard is the id of the shard, Instance the id of the instance on that shard.
	Shard, Instance string
}

// String returns {shard}/{instance id}. The annotation AnnotationCordonedFor of a
// Node has this form, too.
func (k Key) String() string { return k.Shard + "/" + k.Instance }

// MarshalLog implements logr.Marshaler.
func (k Key) MarshalLog() any {
	return struct {
		Shard    string `json:"shard"`
		Instance string `json:"instance"`
	}{k.Shard, k.Instance}
}

// cordonedFor returns the drain that a Node was cordoned for, and whether the
// operator has cordoned the Node.
func cordonedFor(node *corev1.Node) (Key, bool) {
	shard, instance, ok := strings.Cut(node.Annotations[v1beta1.AnnotationCordonedFor], "/")
	return Key{Shard: shard, Instance: instance}, ok && shard != "" && instance != ""
}
