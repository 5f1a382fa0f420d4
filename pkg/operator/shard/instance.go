// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// InstanceState is the state of an instance that servers report (docs/protocol.md#instances).
// Servers may report states that are not listed here.
type InstanceState string

// A draining instance is running.
const (
	InstancePending     InstanceState = "pending"
	InstanceRunning     InstanceState = "running"
	InstanceStopped     InstanceState = "stopped"
	InstanceFailed      InstanceState = "failed"
	InstanceTerminating InstanceState = "terminating"
	// InstanceTerminated: the instance was deleted, but the server still has a record of it.
	InstanceTerminated InstanceState = "terminated"
)

// IsTerminating reports whether an instance is being deleted or was deleted. It is
// false for a draining instance: the server may withdraw the drain.
func (s InstanceState) IsTerminating() bool {
	return s == InstanceTerminating || s == InstanceTerminated
}

// InstanceSpec describes an on-demand instance to create.
type InstanceSpec struct {
	// Group is the key of the group that provides the template.
	Group string
	// InstanceType overrides the instance type of the group, unless it is empty.
	InstanceType string
	// Vars are merged over the vars of the group.
	Vars map[string]string
	// LoadBalancers are keys of load balancers of the server, nil for those of the group.
	LoadBalancers []string
}

// Instance is an instance that a shard server reports.
type Instance struct {
	// ID is assigned by the server.
	ID    string
	State InstanceState
	// ProviderID is empty until the provider has assigned it, and in the reply to
	// CreateInstance.
	ProviderID string
	// DeleteAt is the latest time at which a draining instance is deleted. It is zero for
	// other instances, and if the server does not report it.
	DeleteAt time.Time
	// Created is when the instance was created, in seconds since 1970, 0 if the server does not
	// report it. A time would take three times as much memory.
	Created int64
	// Outdated is why the instance is to be replaced although it works, "" if it is up to date.
	Outdated string
}

// NodeShape is the expected shape of a group's Nodes before the first Node exists. Fields that
// the server does not know are empty.
type NodeShape struct {
	// Architecture and OperatingSystem have the values of GOARCH and GOOS.
	Architecture, OperatingSystem string
	// Capacity are quantities by resource, such as cpu and memory.
	Capacity map[string]string
	Labels   Labels
	Taints   []Taint
}

// Labels are the labels that a Node of a group registers with, sorted by key. There are labels for
// each of a thousand groups, and a slice takes half of the memory of a map.
type Labels []Label

// Label is a label that a Node of a group registers with.
type Label struct{ Key, Value string }

// LabelsOf returns the labels of a map.
func LabelsOf(values map[string]string) Labels {
	labels := make(Labels, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		labels = append(labels, Label{Key: key, Value: values[key]})
	}
	return labels
}

// Get returns the value of the label with a key, and whether there is one.
func (l Labels) Get(key string) (string, bool) {
	at, ok := slices.BinarySearchFunc(l, key, func(label Label, key string) int { return strings.Compare(label.Key, key) })
	if !ok {
		return "", false
	}
	return l[at].Value, true
}

// Taint is a taint that a Node of a group registers with.
type Taint struct {
	Key, Value string
	// Effect is NoSchedule, PreferNoSchedule or NoExecute.
	Effect string
}

// Equal reports whether two shapes are equal. Either may be nil.
func (s *NodeShape) Equal(other *NodeShape) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.Architecture == other.Architecture &&
		s.OperatingSystem == other.OperatingSystem &&
		maps.Equal(s.Capacity, other.Capacity) &&
		slices.Equal(s.Labels, other.Labels) &&
		slices.Equal(s.Taints, other.Taints)
}

// NoticeState is the stage that the deletion of an instance has reached.
type NoticeState string

// States of a notice (docs/protocol.md#drains).
const (
	// Draining: the server waits until DeleteAt for the acknowledgement that the Node is
	// drained.
	Draining NoticeState = "pending_deletion"
	// Deleting: the instance is being deleted; it is too late to drain.
	Deleting NoticeState = "deleting"
	// Deleted: the instance was deleted.
	Deleted NoticeState = "deleted"
)

// DeletionNotice is a report of a shard server about the planned, current or past deletion of
// an instance.
type DeletionNotice struct {
	InstanceID string
	// ProviderID is the provider id of the instance.
	ProviderID string
	// Addresses are the IP addresses of the machine. They are empty if the provider or the
	// server does not report them.
	Addresses []string
	// Group is the key of the instance's group.
	Group string
	State NoticeState
	// Reason is the server's reason, such as unhealthy or config-drift.
	Reason string
	// Since is when the drain began. DeleteAt is when the server deletes the instance even if
	// the drain was not acknowledged. Both are by the clock of the server, and zero if the
	// server does not report them.
	Since, DeleteAt time.Time
	// Deadline is the earliest time, by the clock of this process, at which the server has
	// deleted the instance: the arrival of the notice on the current watch, plus the time from
	// Since to DeleteAt. It is zero if either is zero.
	Deadline time.Time
	// Announced grows each time the server reports this drain. It never decreases, not even
	// after the drain was withdrawn. The server reports a drain again after each reconnection,
	// and expects an acknowledgement each time.
	Announced int64
}
