// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package objects has the objects that the plugin of kubectl has read, and finds the objects
// that belong together. An object that could not be read is unknown, and never counts as
// missing.
package objects

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Read is the result of a request to the API server.
type Read[T any] struct {
	Items []T
	// Unknown is why the items are not known, such as "forbidden to list pods", empty after a
	// successful request.
	Unknown string
}

// Unread returns a Read whose items are not known.
func Unread[T any](why string) Read[T] { return Read[T]{Unknown: why} }

// Snapshot contains the objects that a command has read. A field that a command does not need
// is empty.
type Snapshot struct {
	// Now is the time of the read, by the clock of this machine.
	Now time.Time
	// Namespace is the namespace of the namespaced objects, empty for all namespaces.
	Namespace string

	Pools           Read[v1beta1.NstanceMachinePool]
	MachinePools    Read[clusterv1.MachinePool]
	ShardGroups     Read[v1beta1.NstanceShardGroup]
	NstanceMachines Read[v1beta1.NstanceMachine]
	Machines        Read[clusterv1.Machine]
	PoolEvents      Read[eventsv1.Event]
	// RecentEvents are the events of the operator about any of these objects.
	RecentEvents Read[eventsv1.Event]

	// Clusters show whether the Nodes are in another cluster. They are not read if the
	// kubeconfig of that cluster is given.
	Clusters Read[v1beta1.NstanceCluster]

	// Nodes and all following objects are in the cluster of the Nodes.
	Nodes Read[corev1.Node]
	// NodeEvents are the events about the Node that a command explains.
	NodeEvents  Read[eventsv1.Event]
	Attachments Read[storagev1.VolumeAttachment]
	// RecentNodeEvents are the events of the operator about any Node. They are empty if
	// RecentEvents contain them.
	RecentNodeEvents Read[eventsv1.Event]
	// Pods has the Pods of each Node that is being drained, by the name of the Node. Budgets
	// has the PodDisruptionBudgets of the namespaces of these Pods, by namespace.
	Pods    map[string]Read[corev1.Pod]
	Budgets map[string]Read[policyv1.PodDisruptionBudget]
	// DrainRules are the MachineDrainRules, CAPIClusters the Clusters that they may select, and
	// PodNamespaces the namespaces of these Pods by name, if a rule selects namespaces. They are
	// read if a Node is being drained.
	DrainRules    Read[clusterv1.MachineDrainRule]
	CAPIClusters  Read[clusterv1.Cluster]
	PodNamespaces map[string]Read[corev1.Namespace]
	// Requesting has the Pods that have requested a machine. A Pod that was not found has no
	// item.
	Requesting map[types.NamespacedName]Read[corev1.Pod]
}

// notRead is why objects are not known if the command has not requested them.
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

// Unknown returns why objects are not known, sorted and without duplicates.
func (s *Snapshot) Unknown() []string {
	all := []string{
		s.Pools.Unknown, s.MachinePools.Unknown, s.ShardGroups.Unknown, s.NstanceMachines.Unknown,
		s.Machines.Unknown, s.PoolEvents.Unknown, s.Clusters.Unknown, s.Nodes.Unknown, s.NodeEvents.Unknown, s.Attachments.Unknown,
		s.RecentEvents.Unknown, s.RecentNodeEvents.Unknown, s.DrainRules.Unknown, s.CAPIClusters.Unknown,
	}
	for _, read := range s.PodNamespaces {
		all = append(all, read.Unknown)
	}
	for _, read := range s.Pods {
		all = append(all, read.Unknown)
	}
	for _, read := range s.Budgets {
		all = append(all, read.Unknown)
	}
	for _, read := range s.Requesting {
		all = append(all, read.Unknown)
	}
	found := map[string]bool{}
	for _, why := range all {
		if why != "" {
			found[why] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// APIVersion is the version of the structures that the commands print as JSON and YAML. A
// later release may add fields to it.
const APIVersion = "plugin.nstance.dev/v1alpha1"

// NodeEventsOf returns the events with a reason about a Node, the last event first.
func (s *Snapshot) NodeEventsOf(node *corev1.Node, reason string) []eventsv1.Event {
	var found []eventsv1.Event
	for _, event := range s.NodeEvents.Items {
		if event.Reason == reason && event.Regarding.Name == node.Name && event.Regarding.UID == node.UID {
			found = append(found, event)
		}
	}
	slices.SortFunc(found, func(a, b eventsv1.Event) int { return LastSeen(&b).Compare(LastSeen(&a)) })
	return found
}

// LastSeen returns when an event was observed for the last time.
func LastSeen(event *eventsv1.Event) time.Time {
	switch {
	case event.Series != nil:
		return event.Series.LastObservedTime.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}

// Writer is the last client that has set a field, by the managed fields of the object
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
type Writer struct {
	// Manager is the field manager, a name that the client chooses.
	Manager string
	At      time.Time
}

// WriterOf returns the last writer of a field. A field that was set through the scale
// subresource of a custom resource, or by a default, has no writer. path are the keys of the
// managed fields, such as "f:spec", "f:replicas".
func WriterOf(object metav1.Object, path ...string) (Writer, bool) {
	var last Writer
	found := false
	for _, entry := range object.GetManagedFields() {
		if !owns(entry.FieldsV1.GetRawBytes(), path) {
			continue
		}
		writer := Writer{Manager: entry.Manager}
		if entry.Time != nil {
			writer.At = entry.Time.Time
		}
		if !found || writer.At.After(last.At) {
			last, found = writer, true
		}
	}
	return last, found
}

// owns reports whether encoded managed fields contain a field.
func owns(fields []byte, path []string) bool {
	for _, key := range path {
		var children map[string]json.RawMessage
		if json.Unmarshal(fields, &children) != nil {
			return false
		}
		child, ok := children[key]
		if !ok {
			return false
		}
		fields = child
	}
	return true
}
