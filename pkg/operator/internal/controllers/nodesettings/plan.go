// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodesettings

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// applied is what the operator has set on a Node: the keys of labels, and keys and effects of taints. It is
// in an annotation of the Node, so that what a pool no longer has is removed, and nothing else.
type applied struct {
	Labels []string `json:"labels,omitempty"`
	Taints []string `json:"taints,omitempty"`
}

// appliedTo reads the annotation of a Node. One that cannot be read counts as missing: then labels and
// taints that the pool no longer has stay.
func appliedTo(node *corev1.Node) (was applied) {
	if err := json.Unmarshal([]byte(node.Annotations[v1beta1.AnnotationNodeSettings]), &was); err != nil {
		return applied{}
	}
	return was
}

// Trim adds to the trimmed copy of a Node, which has the annotation, the labels and taints that the
// operator has set, and TaintUninitialized. The cache needs no others.
func Trim(kept, node *corev1.Node) {
	was := appliedTo(kept)
	for _, key := range was.Labels {
		if value, ok := node.Labels[key]; ok {
			metav1.SetMetaDataLabel(&kept.ObjectMeta, key, value)
		}
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1beta1.TaintUninitialized || slices.Contains(was.Taints, nameOf(taint.Key, taint.Effect)) {
			kept.Spec.Taints = append(kept.Spec.Taints, corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
		}
	}
}

// nameOf names a taint: there may be only one with its key and effect on a Node.
func nameOf(key string, effect corev1.TaintEffect) string { return key + ":" + string(effect) }

// change is a write to a Node.
type change struct {
	// labels are the labels to set, nil for a label to remove.
	labels map[string]*string
	// taints are all taints of the Node.
	taints []corev1.Taint
	// annotation is the annotation, nil for none.
	annotation *string
}

// plan returns what to write to a Node so that it has the settings of its pool, nil if it has them.
// Labels and taints of other writers stay. A taint with OnInitialization is set only together with the
// removal of TaintUninitialized: any other Node may be initialized already. A taint with
// OnInitialization stays, also if it was set as Always before: only the component that it is for knows
// when to remove it.
func plan(node *corev1.Node, wanted v1beta1.NodeSettings) (*change, error) {
	was := appliedTo(node)
	next := &change{labels: map[string]*string{}}
	for key, value := range wanted.Labels {
		if current, ok := node.Labels[key]; !ok || current != value {
			next.labels[key] = &value
		}
	}
	for _, key := range was.Labels {
		if _, stays := wanted.Labels[key]; stays {
			continue
		}
		if _, exists := node.Labels[key]; exists {
			next.labels[key] = nil
		}
	}

	always, once := map[string]corev1.Taint{}, map[string]corev1.Taint{}
	for _, taint := range wanted.Taints {
		set := always
		if taint.Propagation == v1beta1.TaintOnInitialization {
			set = once
		}
		set[nameOf(taint.Key, taint.Effect)] = corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect}
	}
	missing := maps.Clone(always)
	for _, taint := range node.Spec.Taints {
		name := nameOf(taint.Key, taint.Effect)
		ours, stays := always[name]
		switch {
		case taint.Key == v1beta1.TaintUninitialized:
			maps.Copy(missing, once)
		case stays:
			delete(missing, name)
			taint.Value = ours.Value
			next.taints = append(next.taints, taint)
		case slices.Contains(was.Taints, name) && once[name].Key == "":
		default:
			next.taints = append(next.taints, taint)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if !slices.ContainsFunc(next.taints, func(t corev1.Taint) bool { return nameOf(t.Key, t.Effect) == name }) {
			next.taints = append(next.taints, missing[name])
		}
	}

	is := applied{Labels: slices.Sorted(maps.Keys(wanted.Labels)), Taints: slices.Sorted(maps.Keys(always))}
	if len(is.Labels)+len(is.Taints) > 0 {
		text, err := json.Marshal(is)
		if err != nil {
			return nil, fmt.Errorf("encode what is set on Node %s: %w", node.Name, err)
		}
		annotation := string(text)
		next.annotation = &annotation
	}
	current, annotated := node.Annotations[v1beta1.AnnotationNodeSettings]
	sameAnnotation := next.annotation == nil && !annotated || next.annotation != nil && annotated && *next.annotation == current
	if len(next.labels) == 0 && sameAnnotation && slices.EqualFunc(next.taints, node.Spec.Taints, sameTaint) {
		return nil, nil
	}
	return next, nil
}

// sameTaint reports whether two taints are equal but for their times.
func sameTaint(a, b corev1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
}

// patch returns a merge patch for a Node that was read from the API server. Taints are a list, which is
// replaced as a whole, so that the patch is only for this version of the Node.
func (c *change) patch(node *corev1.Node) ([]byte, error) {
	labels := map[string]*string{}
	maps.Copy(labels, c.labels)
	metadata := map[string]any{"resourceVersion": node.ResourceVersion, "uid": node.UID}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if current, annotated := node.Annotations[v1beta1.AnnotationNodeSettings]; c.annotation == nil && annotated || c.annotation != nil && *c.annotation != current {
		metadata["annotations"] = map[string]*string{v1beta1.AnnotationNodeSettings: c.annotation}
	}
	body := map[string]any{"metadata": metadata}
	if !slices.EqualFunc(c.taints, node.Spec.Taints, sameTaint) {
		taints := c.taints
		if taints == nil {
			taints = []corev1.Taint{}
		}
		body["spec"] = map[string]any{"taints": taints}
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode a patch for Node %s: %w", node.Name, err)
	}
	return text, nil
}
