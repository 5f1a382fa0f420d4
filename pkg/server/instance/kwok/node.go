// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
)

// Labels that associate a Node with what it belongs to. By the first two a
// shard finds its instances again (server document).
const (
	LabelClusterID  = "nstance.dev/cluster-id"
	LabelShard      = "nstance.dev/shard"
	LabelTenant     = "nstance.dev/tenant"
	LabelGroup      = "nstance.dev/group"
	LabelInstanceID = "nstance.dev/instance-id"
)

const (
	fieldManager = "nstance-server"

	// annotationFake marks the Nodes that kwok shall keep ready.
	annotationFake = "kwok.x-k8s.io/node"

	// kubeletVersion is what a Node claims to run. kwok keeps it; its own value
	// is no semantic version, which Cluster API refuses in a Machine (CAPI
	// contract).
	kubeletVersion = "v1.36.3"

	operatingSystem = "linux"
	podsPerNode     = 110
	diskGiB         = 100
)

// newNode returns the Node of an instance. The API server takes the status with
// the creation, as it does from a kubelet: there is no moment at which the Node
// has no capacity.
func (p *Provider) newNode(spec instance.Spec) *corev1.Node {
	infra := p.config.Shard.Infra
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              spec.Type.CPU,
		corev1.ResourceMemory:           spec.Type.Memory,
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(diskGiB<<30, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(podsPerNode, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.ID,
			Labels: map[string]string{
				LabelClusterID:                 p.config.ClusterID,
				LabelShard:                     p.config.Shard.ID,
				LabelTenant:                    spec.Group.Tenant,
				LabelGroup:                     spec.Group.Group,
				LabelInstanceID:                spec.ID,
				corev1.LabelTopologyRegion:     infra.Region,
				corev1.LabelTopologyZone:       infra.Zone,
				corev1.LabelInstanceTypeStable: spec.Type.Name,
				corev1.LabelArchStable:         spec.Type.Arch,
				corev1.LabelOSStable:           operatingSystem,
				corev1.LabelHostname:           spec.ID,
			},
			Annotations: map[string]string{annotationFake: "fake"},
		},
		Spec: corev1.NodeSpec{ProviderID: "kwok:///" + infra.Zone + "/" + spec.ID},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			NodeInfo: corev1.NodeSystemInfo{
				Architecture:    spec.Type.Arch,
				KubeletVersion:  kubeletVersion,
				OperatingSystem: operatingSystem,
			},
		},
	}
}

// fromNode reads an instance back. A Node that is there runs, whether or not it
// is ready: its health is another matter.
func fromNode(node *corev1.Node) instance.Instance {
	state := instance.Running
	if node.DeletionTimestamp != nil {
		state = instance.Terminating
	}
	return instance.Instance{
		ID:         node.Name,
		ProviderID: node.Spec.ProviderID,
		Group:      groupOf(node),
		State:      state,
		CreatedAt:  createdAt(node.Name, node.CreationTimestamp.Time),
	}
}

func groupOf(node *corev1.Node) instance.GroupKey {
	return instance.GroupKey{Tenant: node.Labels[LabelTenant], Group: node.Labels[LabelGroup]}
}

// createdAt reads when an instance was ordered from its id. That is the same
// before its Node is there and after a restart, and finer than the seconds of a
// Node's creationTimestamp.
func createdAt(id string, fallback time.Time) time.Time {
	if id, err := puidv7.Parse(id); err == nil {
		return id.Time()
	}
	return fallback
}
