// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/instance"
)

// Labels that associate a Node with what it belongs to. By the first three a
// shard finds its instances again (server document); by tenant and group it takes
// in those of which it has no record.
const (
	LabelManaged    = "nstance.dev/managed"
	LabelClusterID  = "nstance.dev/cluster-id"
	LabelShard      = "nstance.dev/shard"
	LabelTenant     = "nstance.dev/tenant"
	LabelGroup      = "nstance.dev/group"
	LabelInstanceID = "nstance.dev/instance-id"
	LabelSubnet     = "nstance.dev/subnet"
)

// Annotations for those who look at a Node (server document). Nothing is decided
// by them.
const (
	AnnotationKind     = "nstance.dev/kind"
	AnnotationTemplate = "nstance.dev/template"
	// AnnotationCreatedAt is RFC 3339, to the second.
	AnnotationCreatedAt = "nstance.dev/created-at"
)

// AnnotationProviderStatus is what a cloud would say of the machine. People and
// tests set it; the values are below, and any other is that of a machine that
// runs.
const AnnotationProviderStatus = "nstance.dev/provider-status"

// Values of AnnotationProviderStatus.
const (
	StatusStopped  = "stopped"
	StatusFailed   = "failed"
	StatusImpaired = "impaired"
)

// managed is the value of LabelManaged.
const managed = "true"

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
			Labels: over(argsOf(spec.Args, argLabels), map[string]string{
				LabelManaged:                   managed,
				LabelClusterID:                 p.config.ClusterID,
				LabelShard:                     p.config.Shard.ID,
				LabelTenant:                    spec.Group.Tenant,
				LabelGroup:                     spec.Group.Group,
				LabelInstanceID:                spec.ID,
				LabelSubnet:                    spec.Subnet,
				corev1.LabelTopologyRegion:     infra.Region,
				corev1.LabelTopologyZone:       infra.Zone,
				corev1.LabelInstanceTypeStable: spec.Type.Name,
				corev1.LabelArchStable:         spec.Type.Arch,
				corev1.LabelOSStable:           operatingSystem,
				corev1.LabelHostname:           spec.ID,
			}),
			Annotations: over(argsOf(spec.Args, argAnnotations), map[string]string{
				annotationFake:      "fake",
				AnnotationKind:      spec.Kind,
				AnnotationTemplate:  spec.Template,
				AnnotationCreatedAt: spec.CreatedAt.UTC().Format(time.RFC3339),
			}),
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

// ExpectedNode returns the Node that Create would make, without what is of one
// instance alone: the subnet too, for it is chosen by the room that there is.
func (p *Provider) ExpectedNode(spec instance.Spec) *corev1.Node {
	node := p.newNode(spec)
	for _, label := range []string{LabelInstanceID, LabelSubnet, corev1.LabelHostname} {
		delete(node.Labels, label)
	}
	node.Name, node.Annotations, node.Spec.ProviderID = "", nil, ""
	return node
}

// fromNode reads an instance back. A Node that is there runs, whether or not it
// is ready: its health is another matter.
func fromNode(node *corev1.Node) instance.VM {
	return instance.VM{
		ID:         node.Name,
		ProviderID: node.Spec.ProviderID,
		Group:      groupOf(node),
		State:      stateOf(node),
	}
}

func stateOf(node *corev1.Node) instance.State {
	if node.DeletionTimestamp != nil {
		return instance.Terminating
	}
	switch node.Annotations[AnnotationProviderStatus] {
	case StatusStopped:
		return instance.Stopped
	case StatusFailed:
		return instance.Failed
	case StatusImpaired:
		return instance.Impaired
	default:
		return instance.Running
	}
}

func groupOf(node *corev1.Node) instance.GroupKey {
	return instance.GroupKey{Tenant: node.Labels[LabelTenant], Group: node.Labels[LabelGroup]}
}
