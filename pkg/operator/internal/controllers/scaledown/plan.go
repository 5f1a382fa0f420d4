// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scaledown

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// AnnotationDisabled is the annotation of a Node that the cluster autoscaler does not remove while the value
// is disabled (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md).
const (
	AnnotationDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	disabled           = "true"
)

// reasonScaleDown is the reason of a notice if the instance is one more than the size
// (docs/protocol.md#drains). No instance replaces it.
const reasonScaleDown = "scale-down"

// reported is the report of a shard about a group, with its notices and the marks of Nodes.
type reported struct {
	group shard.Group
	// notice returns the notice of an instance, and whether there is one.
	notice func(id string) (shard.DeletionNotice, bool)
	// protected reports whether the operator protects the Node of an instance.
	protected func(instance shard.Instance) bool
}

// replacements returns the running instances whose Nodes the cluster autoscaler must not remove. There is
// a replacement for each instance above the size, except those that leave for a scale-down, and for at most
// as many instances as are to be replaced. The newest instances that stay are the replacements.
//
// With several replacements it is not known which of them takes the Pods of which instance, and the drains
// end in any order. So an instance that is protected stays protected as long as there is a replacement. A
// pending instance may be the replacement, or it was created for a larger size: until it runs, the newest
// instance that runs is protected.
func replacements(r reported) []shard.Instance {
	above := -int(r.group.Size)
	for _, instance := range r.group.Instances {
		if isPresent(instance) {
			above++
		}
	}
	if above <= 0 {
		return nil
	}
	selected := sets.New(r.group.RemoveFirst...)
	reasons := sets.New[string]()
	for _, next := range r.group.DeletionOrder {
		if next.Reason != "" {
			reasons.Insert(next.InstanceID)
		}
	}
	var staying []shard.Instance
	replaced := 0
	for _, instance := range r.group.Instances {
		if !isPresent(instance) {
			continue
		}
		notice, noticed := r.notice(instance.ID)
		switch {
		case selected.Has(instance.ID), noticed && notice.Reason == reasonScaleDown:
			above--
		case noticed, reasons.Has(instance.ID), instance.Outdated != "":
			replaced++
		case instance.State == shard.InstanceRunning:
			staying = append(staying, instance)
		}
	}
	count := min(above, replaced)
	if count <= 0 {
		return nil
	}
	slices.SortFunc(staying, func(a, b shard.Instance) int {
		return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(b.ID, a.ID))
	})
	var found []shard.Instance
	for n, instance := range staying {
		if n < count || r.protected(instance) {
			found = append(found, instance)
		}
	}
	return found
}

// isPresent reports whether an instance counts for the size of its group. A draining instance runs.
func isPresent(instance shard.Instance) bool {
	return instance.State == shard.InstancePending || instance.State == shard.InstanceRunning
}

// change returns the annotations to write to a Node, nil for those to remove, so that it is protected for a
// shard group, or not if that is "". What a user has set is left alone: the annotation of the autoscaler
// without ours, or with another value.
func change(node *corev1.Node, shardGroup string) map[string]*string {
	value, set := node.Annotations[AnnotationDisabled]
	owner, ours := node.Annotations[v1beta1.AnnotationScaleDownDisabled]
	next := map[string]*string{}
	switch {
	case set && (!ours || value != disabled):
		shardGroup, set = "", false
	case shardGroup != "" && set && owner == shardGroup:
		return nil
	}
	if shardGroup != "" {
		enabled := disabled
		next[AnnotationDisabled], next[v1beta1.AnnotationScaleDownDisabled] = &enabled, &shardGroup
		return next
	}
	if set {
		next[AnnotationDisabled] = nil
	}
	if ours {
		next[v1beta1.AnnotationScaleDownDisabled] = nil
	}
	return next
}

// patch returns a merge patch with annotations for a Node that was read from the API server. It is only for
// this version of the Node: a user may set the annotation in between.
func patch(node *corev1.Node, annotations map[string]*string) ([]byte, error) {
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return nil, fmt.Errorf("encode a patch for Node %s: %w", node.Name, err)
	}
	return text, nil
}
