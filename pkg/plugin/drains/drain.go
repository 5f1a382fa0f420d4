// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package drains finds the drains in progress and what blocks each (docs/drains.md).
package drains

import (
	"cmp"
	"time"
)

// State is how far a drain is.
type State string

const (
	// Draining means: Pods are left, and nothing is known to block them.
	Draining State = "Draining"
	// Blocked means: the operator reports a blockage, or a Pod cannot be evicted or does
	// not terminate.
	Blocked State = "Blocked"
	// Drained means: no Pod is left that has to leave.
	Drained State = "Drained"
	// Unreported means: no object that was read has the instance any more. The shard has
	// deleted it, or it belongs to another namespace.
	Unreported State = "Unreported"
	// Unknown means: the Pods, or what blocks them, are not known.
	Unknown State = "Unknown"
)

// Who drains a Node.
const (
	ByShard      = "Shard"
	ByClusterAPI = "ClusterAPI"
)

// Drain is one Node that is being emptied.
type Drain struct {
	Node string `json:"node"`
	// By is who requested the drain: Shard, ClusterAPI, or both.
	By    []string `json:"by"`
	State State    `json:"state"`
	// Namespace and Pool are empty for an instance of no pool, or if they are not known.
	Namespace string `json:"namespace,omitempty"`
	Pool      string `json:"pool,omitempty"`
	Shard     string `json:"shard,omitempty"`
	Instance  string `json:"instance,omitempty"`
	Machine   string `json:"machine,omitempty"`
	// PoolUnknown is why it is not known whether the instance belongs to a pool.
	PoolUnknown string `json:"poolUnknown,omitempty"`

	// Reason is why the instance is to be deleted. If it is empty, ReasonUnknown says why.
	Reason        string    `json:"reason,omitempty"`
	ReasonUnknown string    `json:"reasonUnknown,omitempty"`
	Since         time.Time `json:"since,omitzero"`
	// Deadline is when the instance is deleted in any case. If it is zero and
	// DeadlineUnknown is empty, there is none.
	Deadline        time.Time `json:"deadline,omitzero"`
	DeadlineUnknown string    `json:"deadlineUnknown,omitempty"`

	// Messages are what the operator and Cluster API report as blocking.
	Messages []string `json:"messages,omitempty"`
	// blocked is set if the operator reports the drain as blocked.
	blocked bool
	// Pods are those that have to leave and are left.
	Pods        []Pod  `json:"pods"`
	PodsUnknown string `json:"podsUnknown,omitempty"`
	// Staying is the number of Pods that do not have to leave.
	Staying int `json:"staying"`
	// Volumes are the attached volumes. Those of Pods that stay are among them.
	Volumes        []string `json:"volumes"`
	VolumesUnknown string   `json:"volumesUnknown,omitempty"`
}

// Pod is a Pod that has to leave a Node.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// TerminatesAt is when the grace period of a Pod that is being deleted is over.
	TerminatesAt time.Time `json:"terminatesAt,omitzero"`
	Finalizers   []string  `json:"finalizers,omitempty"`
	// Blockers are what blocks it, empty for a Pod whose next eviction may succeed.
	Blockers []string `json:"blockers,omitempty"`
	// Unknown is why it is not known whether something blocks it.
	Unknown string `json:"unknown,omitempty"`
}

// InProgress reports whether the instance is not known to be deleted.
func (d *Drain) InProgress() bool { return d.State != Unreported }

// WhyUnknown returns why the state is Unknown.
func (d *Drain) WhyUnknown() string {
	why := d.PodsUnknown
	for _, pod := range d.Pods {
		why = cmp.Or(why, pod.Unknown)
	}
	return why
}
