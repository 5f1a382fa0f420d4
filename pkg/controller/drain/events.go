// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// action is what an event says was tried.
const action = "Drain"

// maxNote keeps a note well below what the API server takes, 1024 bytes.
const maxNote = 1000

// ambiguous says that more than one Node has the provider id of an instance.
func ambiguous(providerID string, nodes []*corev1.Node) blockage {
	names := make([]string, len(nodes))
	for i, node := range nodes {
		names[i] = node.Name
	}
	slices.Sort(names)
	message := fmt.Sprintf("provider id %q matches Nodes %s", providerID, strings.Join(names, ", "))
	return blockage{message: message, note: message + ": none of them is drained", reason: v1beta1.ReasonAmbiguousProviderID}
}

// recordBlocked reports what keeps Nodes from being drained, on each of them.
func (c *Controller) recordBlocked(nodes []*corev1.Node, by blockage) {
	for _, node := range nodes {
		if by.pod == nil {
			controller.Warn(c.recorder, node, by.reason, action, by.note)
			continue
		}
		c.recorder.Eventf(node, by.pod, corev1.EventTypeWarning, by.reason, action, "%s", cut(by.note))
	}
}

// cut is note in at most maxNote bytes.
func cut(note string) string {
	return strings.ToValidUTF8(note[:min(len(note), maxNote)], "")
}
