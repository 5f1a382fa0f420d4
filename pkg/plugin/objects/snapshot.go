// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package objects has the objects that the plugin of kubectl has read, and finds those that
// belong together. What could not be read is unknown, and never counts as not existing.
package objects

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Read is the result of a request to the API server.
type Read[T any] struct {
	Items []T
	// Unknown is why the items are not known, such as "forbidden to list pods"; empty if
	// they are.
	Unknown string
}

// Unread returns a Read whose items are not known.
func Unread[T any](why string) Read[T] { return Read[T]{Unknown: why} }

// Snapshot is what a command has read. A field that a command does not need is empty.
type Snapshot struct {
	// Now is the time of the read, by the clock of this machine.
	Now time.Time
	// Namespace is that of the namespaced objects, empty for all namespaces.
	Namespace string

	Pools           Read[v1beta1.NstanceMachinePool]
	MachinePools    Read[clusterv1.MachinePool]
	ShardGroups     Read[v1beta1.NstanceShardGroup]
	NstanceMachines Read[v1beta1.NstanceMachine]
	Machines        Read[clusterv1.Machine]
	PoolEvents      Read[eventsv1.Event]
	// RecentEvents are those of the operator about any of these objects.
	RecentEvents Read[eventsv1.Event]

	// Clusters say whether the Nodes are in another cluster. They are not read if its
	// kubeconfig is given.
	Clusters Read[v1beta1.NstanceCluster]

	// Nodes, and the events about them, are in the cluster of the Nodes, like all that
	// follows.
	Nodes       Read[corev1.Node]
	NodeEvents  Read[eventsv1.Event]
	Attachments Read[storagev1.VolumeAttachment]
	// RecentNodeEvents are those of the operator about any Node. They are empty if
	// RecentEvents contain them.
	RecentNodeEvents Read[eventsv1.Event]
	// Pods are by Node, for the Nodes that are being drained. Budgets are by namespace, for
	// those of these Pods.
	Pods    map[string]Read[corev1.Pod]
	Budgets map[string]Read[policyv1.PodDisruptionBudget]
	// Requesting are Pods that have requested a machine; no item is a Pod that was not found.
	Requesting map[types.NamespacedName]Read[corev1.Pod]
}

// notRead is why an object is not known that no command has requested.
const notRead = "not read"

// PodsOn returns the Pods on a Node.
func (s *Snapshot) PodsOn(node string) Read[corev1.Pod] {
	if read, ok := s.Pods[node]; ok {
		return read
	}
	return Unread[corev1.Pod](notRead)
}

// BudgetsIn returns the PodDisruptionBudgets of a namespace.
func (s *Snapshot) BudgetsIn(namespace string) Read[policyv1.PodDisruptionBudget] {
	if read, ok := s.Budgets[namespace]; ok {
		return read
	}
	return Unread[policyv1.PodDisruptionBudget](notRead)
}
