// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// maxAddress is the maximum length of an address in the CRD, and maxAddresses their maximum
// number.
const (
	maxAddress   = 256
	maxAddresses = 128
)

// wantedProviderID returns the value for spec.providerID. Cluster API compares provider ids
// byte for byte (docs/capi.md#provider-ids), so this is the id of the matching Node. Without a
// Node, a value that matches the reported id is kept, and any other is replaced by the
// reported id. With several Nodes, or a Node that the shard may not name, the value is kept:
// Cluster API drains and deletes the Node of the value with the Machine.
func wantedProviderID(current, reported string, nodes []*corev1.Node, foreign string) string {
	switch {
	case foreign != "":
		return current
	case len(nodes) == 1:
		return nodes[0].Spec.ProviderID
	case reported == "" || len(nodes) > 1 || providerid.Match(current, reported):
		return current
	default:
		return reported
	}
}

// addressesOf returns the addresses of a Node that have a type of Cluster API, as many as the
// CRD allows.
func addressesOf(node *corev1.Node) []v1beta1.MachineAddress {
	var addresses []v1beta1.MachineAddress
	for _, address := range node.Status.Addresses {
		switch address.Type {
		case corev1.NodeHostName, corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
			if address.Address != "" && len(address.Address) <= maxAddress {
				addresses = append(addresses, v1beta1.MachineAddress{Type: string(address.Type), Address: address.Address})
			}
		}
	}
	return addresses[:min(len(addresses), maxAddresses)]
}

// setNodeRef sets the Node of the Machine if Cluster API has not found it within nodeRefGrace
// (docs/capi.md#node-references), and returns the delay until then. It never replaces a Node:
// Cluster API would not correct a wrong name, and would drain and delete that Node.
func (c *Controller) setNodeRef(ctx context.Context, observed observation, nodes []*corev1.Node, state *syncState) (time.Duration, error) {
	machine := observed.machine
	if len(nodes) != 1 || machine == nil || !machine.DeletionTimestamp.IsZero() || machine.Status.NodeRef.Name != "" {
		state.node = ""
		return 0, nil
	}
	node := nodes[0]
	if state.node != node.UID {
		state.node, state.nodeSince = node.UID, observed.now
	}
	if wait := nodeRefGrace - observed.now.Sub(state.nodeSince); wait > 0 {
		return wait, nil
	}
	// With the resource version the patch fails if Cluster API has written meanwhile.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": machine.UID, "resourceVersion": machine.ResourceVersion},
		"status":   map[string]any{"nodeRef": map[string]any{"name": node.Name}},
	})
	if err != nil {
		return 0, fmt.Errorf("encode the patch that sets the Node of Machine %s: %w", klog.KObj(machine), err)
	}
	_, err = c.machines.Patch(ctx, machine.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsConflict(err):
		// Cluster API has changed the Machine, so its grace period starts again.
		state.nodeSince = observed.now
		return nodeRefGrace, nil
	case err != nil:
		return 0, fmt.Errorf("set Node %s of Machine %s: %w", node.Name, klog.KObj(machine), err)
	}
	klog.FromContext(ctx).Info("Node of the Machine set", "machine", klog.KObj(machine), "node", node.Name)
	return 0, nil
}
