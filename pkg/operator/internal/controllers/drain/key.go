// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

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
