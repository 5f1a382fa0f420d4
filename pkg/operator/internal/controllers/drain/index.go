// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/controller"
)

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
