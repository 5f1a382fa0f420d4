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
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/providerid"
)

// maxAddress is the longest address that the CRD allows.
const maxAddress = 256

// writtenProviderID is what spec.providerID is to be: the id of the one Node that
// matches, byte for byte, because Cluster API compares so. While there is none it
// is what it was, or else what the shard says; while it is not clear which Node is
// meant it stays as it is.
func writtenProviderID(before, told string, nodes []*corev1.Node) string {
	switch {
	case len(nodes) == 1:
		return nodes[0].Spec.ProviderID
	case told == "" || len(nodes) > 1 || providerid.Match(before, told):
		return before
	default:
		return told
	}
}

// addressesOf are the addresses of a Node of which Cluster API knows the kind.
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
	return addresses
}

// linkNode tells the Machine its Node when Cluster API has not found it by itself,
// and returns how long to wait until then. A Node that is set is never changed:
// Cluster API would not correct it, and drains and deletes what it names.
func (c *Controller) linkNode(ctx context.Context, seen observation, nodes []*corev1.Node, recalled *memory) (time.Duration, error) {
	owner := seen.owner
	if len(nodes) != 1 || owner == nil || !owner.DeletionTimestamp.IsZero() || owner.Status.NodeRef.Name != "" {
		recalled.node = ""
		return 0, nil
	}
	node := nodes[0]
	if recalled.node != node.UID {
		recalled.node, recalled.since = node.UID, seen.now
	}
	if wait := nodeRefGrace - seen.now.Sub(recalled.since); wait > 0 {
		return wait, nil
	}
	// The version makes it fail when Cluster API has written meanwhile.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": owner.UID, "resourceVersion": owner.ResourceVersion},
		"status":   map[string]any{"nodeRef": map[string]any{"name": node.Name}},
	})
	if err != nil {
		return 0, fmt.Errorf("encode the patch that sets the Node of Machine %s: %w", klog.KObj(owner), err)
	}
	_, err = c.owners.Patch(ctx, owner.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: controller.FieldManager}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsConflict(err):
		// Cluster API is at work on the Machine, if slowly.
		recalled.since = seen.now
		return nodeRefGrace, nil
	case err != nil:
		return 0, fmt.Errorf("set Node %s of Machine %s: %w", node.Name, klog.KObj(owner), err)
	}
	klog.FromContext(ctx).Info("Node of the Machine set", "machine", klog.KObj(owner), "node", node.Name)
	return 0, nil
}
