// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Labels of a Node. A shard finds its instances by the first three labels
// (docs/server-reference.md#providers). If it has no record of an instance, it restores tenant, group
// and LabelOnDemand from the labels.
const (
	LabelManaged   = "nstance.dev/managed"
	LabelClusterID = "nstance.dev/cluster-id"
	LabelShard     = "nstance.dev/shard"
	LabelTenant    = "nstance.dev/tenant"
	LabelGroup     = "nstance.dev/group"
	// LabelOnDemand is "true" on the Node of an on-demand instance. Other Nodes lack it.
	LabelOnDemand   = "nstance.dev/on-demand"
	LabelInstanceID = "nstance.dev/instance-id"
	LabelSubnet     = "nstance.dev/subnet"
	// LabelMarket is the market of an instance whose arguments name a market.
	LabelMarket = "nstance.dev/market"
)

// Annotations from which the record of an instance is restored if it is lost. An empty value
// is not stored.
const (
	AnnotationIdempotencyKey  = "nstance.dev/idempotency-key"
	AnnotationInfraConfigHash = "nstance.dev/infra-config-hash"
)

// Annotations for users. No code reads them.
const (
	AnnotationKind     = "nstance.dev/kind"
	AnnotationTemplate = "nstance.dev/template"
	// AnnotationCreatedAt has the format of RFC 3339, to the second.
	AnnotationCreatedAt = "nstance.dev/created-at"
)

// AnnotationProviderStatus simulates the status that a cloud would report for the VM. Users
// and tests set it to one of the values below. Any other value means that the VM runs.
const AnnotationProviderStatus = "nstance.dev/provider-status"

// Values of AnnotationProviderStatus.
const (
	StatusStopped  = "stopped"
	StatusFailed   = "failed"
	StatusImpaired = "impaired"
)

// The values of LabelManaged and LabelOnDemand.
const (
	managed    = "true"
	isOnDemand = "true"
)

const (
	fieldManager = "nstance-server"

	// annotationFake marks the Nodes that kwok keeps ready
	// (https://kwok.sigs.k8s.io/docs/user/kwok-manage-nodes-and-pods/).
	annotationFake = "kwok.x-k8s.io/node"

	// kubeletVersion is the version in the status of a Node, which kwok preserves. kwok's own
	// default is no semantic version, and Cluster API rejects such a version in a Machine
	// (docs/capi.md#machines).
	kubeletVersion = "v1.36.3"

	operatingSystem = "linux"
	podsPerNode     = 110
	diskGiB         = 100
)

// newNode returns the Node of an instance. The API server accepts the status at creation, as
// for a kubelet, so the Node has its capacity from the start.
func (p *Provider) newNode(spec provider.Spec) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              spec.Type.CPU,
		corev1.ResourceMemory:           spec.Type.Memory,
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(diskGiB<<30, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(podsPerNode, resource.DecimalSI),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.ID,
			Labels: overlay(stringsOf(spec.Args, argLabels), map[string]string{
				LabelManaged:                   managed,
				LabelClusterID:                 p.config.Shard.ClusterID,
				LabelShard:                     p.config.Shard.ID,
				LabelTenant:                    spec.Group.Tenant,
				LabelGroup:                     spec.Group.Group,
				LabelInstanceID:                spec.ID,
				LabelSubnet:                    spec.Subnet,
				corev1.LabelTopologyRegion:     p.config.Shard.Region,
				corev1.LabelTopologyZone:       p.config.Shard.Zone,
				corev1.LabelInstanceTypeStable: spec.Type.Name,
				corev1.LabelArchStable:         spec.Type.Arch,
				corev1.LabelOSStable:           operatingSystem,
				corev1.LabelHostname:           spec.ID,
			}),
			Annotations: overlay(stringsOf(spec.Args, argAnnotations), map[string]string{
				annotationFake:      "fake",
				AnnotationKind:      spec.Kind,
				AnnotationTemplate:  spec.Template,
				AnnotationCreatedAt: spec.CreatedAt.UTC().Format(time.RFC3339),
			}),
		},
		Spec: corev1.NodeSpec{ProviderID: Name + ":///" + p.config.Shard.Zone + "/" + spec.ID, Taints: taintsOf(spec.Args)},
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
	if market, named := spec.Args[argMarket].(string); named {
		node.Labels[LabelMarket] = market
	}
	setOrigin(node, spec.Origin)
	return node
}

// marketOf returns the market of the instance of a Node.
func marketOf(node *corev1.Node) string {
	return cmp.Or(node.Labels[LabelMarket], marketArgument.Default)
}

// setOrigin stores an origin. It replaces values that an argument may have set.
func setOrigin(node *corev1.Node, origin instance.Origin) {
	set := func(values map[string]string, name, value string) {
		delete(values, name)
		if value != "" {
			values[name] = value
		}
	}
	onDemand := ""
	if origin.OnDemand {
		onDemand = isOnDemand
	}
	set(node.Labels, LabelOnDemand, onDemand)
	set(node.Annotations, AnnotationIdempotencyKey, origin.IdempotencyKey)
	set(node.Annotations, AnnotationInfraConfigHash, origin.InfraConfigHash)
}

func originOf(node *corev1.Node) instance.Origin {
	return instance.Origin{
		OnDemand:        node.Labels[LabelOnDemand] == isOnDemand,
		IdempotencyKey:  node.Annotations[AnnotationIdempotencyKey],
		InfraConfigHash: node.Annotations[AnnotationInfraConfigHash],
	}
}

// ExpectedNode returns the Node that Create would create, without the fields that differ by
// instance. The subnet differs, because the server chooses it by capacity.
func (p *Provider) ExpectedNode(spec provider.Spec) *corev1.Node {
	node := p.newNode(spec)
	for _, label := range []string{LabelInstanceID, LabelSubnet, corev1.LabelHostname} {
		delete(node.Labels, label)
	}
	node.Name, node.Annotations, node.Spec.ProviderID = "", nil, ""
	return node
}

// fromNode returns the instance of a Node. The instance runs even if the Node is not ready.
func fromNode(node *corev1.Node) instance.VM {
	return instance.VM{
		ID:         node.Name,
		ProviderID: node.Spec.ProviderID,
		Group:      groupOf(node),
		Origin:     originOf(node),
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

// errForeignNode means that a Node has the name of an instance and belongs to another.
// Clients choose the ids of on-demand instances, so the name proves nothing.
var errForeignNode = errors.New("there is a Node of this name that belongs to another group, shard or cluster")

// find reads the Node of an instance from the API server. The error is errForeignNode if
// another Node has that name.
func (p *Provider) find(ctx context.Context, spec provider.Spec) (*corev1.Node, error) {
	node, err := p.config.Client.Get(ctx, spec.ID, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if !p.hasLabels(node) || groupOf(node) != spec.Group {
		return nil, errForeignNode
	}
	return node, nil
}

// hasLabels reports whether a Node has the labels by which the shard lists its Nodes.
func (p *Provider) hasLabels(node *corev1.Node) bool {
	labels := node.Labels
	return labels[LabelManaged] == managed && labels[LabelClusterID] == p.config.Shard.ClusterID && labels[LabelShard] == p.config.Shard.ID
}

// uidOf returns the UID of the Node of an instance.
func (p *Provider) uidOf(ctx context.Context, spec provider.Spec) (types.UID, error) {
	if node, found := p.node(spec.ID); found {
		return node.UID, nil
	}
	p.mu.Lock()
	absent, isAbsent := p.absent[spec.ID]
	p.mu.Unlock()
	if isAbsent && !absent.vm.Expected {
		return absent.uid, nil
	}
	node, err := p.find(ctx, spec)
	if err != nil {
		return "", fmt.Errorf("look for Node %s: %w", spec.ID, err)
	}
	return node.UID, nil
}

// settle removes a request to delete if neither the API server nor the cache has the Node.
// Otherwise the event handler removes the request when the Node is deleted.
func (p *Provider) settle(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, found := p.node(id); found {
		return false
	}
	delete(p.requests, id)
	delete(p.absent, id)
	return true
}
