// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// CommonNode returns the properties that are certain whatever candidate of a group an instance is of,
// given the Node of each candidate; nil if nothing is certain of one of them. It must not promise too
// much, as operators do not for several shards: a resource counts with its smallest quantity, and only if
// all have it; a label, an architecture or an operating system counts if all have the same; a taint
// counts if one has it.
func CommonNode(nodes []*corev1.Node) *corev1.Node {
	if len(nodes) == 0 || slices.Contains(nodes, nil) {
		return nil
	}
	if len(nodes) == 1 {
		return nodes[0]
	}
	common := nodes[0].DeepCopy()
	for _, node := range nodes[1:] {
		info, other := &common.Status.NodeInfo, node.Status.NodeInfo
		if info.Architecture != other.Architecture {
			info.Architecture = ""
		}
		if info.OperatingSystem != other.OperatingSystem {
			info.OperatingSystem = ""
		}
		for name, quantity := range common.Status.Capacity {
			least, found := node.Status.Capacity[name]
			switch {
			case !found:
				delete(common.Status.Capacity, name)
			case least.Cmp(quantity) < 0:
				common.Status.Capacity[name] = least
			}
		}
		for key, value := range common.Labels {
			if same, found := node.Labels[key]; !found || same != value {
				delete(common.Labels, key)
			}
		}
		for _, taint := range node.Spec.Taints {
			if !slices.Contains(common.Spec.Taints, taint) {
				common.Spec.Taints = append(common.Spec.Taints, taint)
			}
		}
	}
	return common
}
