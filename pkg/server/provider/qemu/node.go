// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/provider"
)

// podsPerNode is the limit that a kubelet has without configuration.
const podsPerNode = 110

// expectedNode returns the Nodes of the machines of a shard. The kernel of a guest needs a
// part of the memory, at most an eighth.
func expectedNode(shard provider.Shard) func(provider.Spec) *corev1.Node {
	return func(spec provider.Spec) *corev1.Node {
		size := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(cpus(spec.Type)), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(spec.Type.Memory.Value()/8*7, resource.BinarySI),
			corev1.ResourcePods:   *resource.NewQuantity(podsPerNode, resource.DecimalSI),
		}
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
				corev1.LabelArchStable:         spec.Type.Arch,
				corev1.LabelOSStable:           "linux",
				corev1.LabelInstanceTypeStable: spec.Type.Name,
				corev1.LabelTopologyRegion:     shard.Region,
				corev1.LabelTopologyZone:       shard.Zone,
			}},
			Status: corev1.NodeStatus{
				Capacity:    size,
				Allocatable: size,
				NodeInfo:    corev1.NodeSystemInfo{Architecture: spec.Type.Arch, OperatingSystem: "linux"},
			},
		}
	}
}
