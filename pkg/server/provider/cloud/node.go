// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/provider"
)

// podsPerNode is the limit that a kubelet has without configuration.
const podsPerNode = 110

// LinuxNode returns the Node of a machine that runs Linux and has as much of the processors
// and the memory of its type.
func LinuxNode(shard provider.Shard, t provider.InstanceType, cpu, memory resource.Quantity) *corev1.Node {
	size := corev1.ResourceList{
		corev1.ResourceCPU:    cpu,
		corev1.ResourceMemory: memory,
		corev1.ResourcePods:   *resource.NewQuantity(podsPerNode, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
			corev1.LabelArchStable:         t.Arch,
			corev1.LabelOSStable:           "linux",
			corev1.LabelInstanceTypeStable: t.Name,
			corev1.LabelTopologyRegion:     shard.Region,
			corev1.LabelTopologyZone:       shard.Zone,
		}},
		Status: corev1.NodeStatus{
			Capacity:    size,
			Allocatable: size,
			NodeInfo:    corev1.NodeSystemInfo{Architecture: t.Arch, OperatingSystem: "linux"},
		},
	}
}
