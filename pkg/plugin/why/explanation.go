// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package why explains why an instance is being created, drained, deleted or kept, and who
// has caused it.
package why

import (
	"time"

	"nstance.dev/operator/pkg/plugin/drains"
)

// Verdict is what happens to an instance.
type Verdict string

const (
	// Created means: the instance does not run yet.
	Created Verdict = "Created"
	// Drained means: its Node is being emptied before the instance is deleted.
	Drained Verdict = "Drained"
	// Deleted means: the instance is being deleted or was deleted.
	Deleted Verdict = "Deleted"
	// Kept means: nothing is to happen to it.
	Kept Verdict = "Kept"
	// Unmanaged means: no object that was read has the instance of the Node.
	Unmanaged Verdict = "Unmanaged"
	// Unknown means: the objects that would say so could not be read.
	Unknown Verdict = "Unknown"
)

// Explanation is what "kubectl nstance why" prints.
type Explanation struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Name       string  `json:"name"`
	Verdict    Verdict `json:"verdict"`

	Node           string `json:"node,omitempty"`
	ProviderID     string `json:"providerID,omitempty"`
	Instance       string `json:"instance,omitempty"`
	Namespace      string `json:"namespace,omitempty"`
	Pool           string `json:"pool,omitempty"`
	Shard          string `json:"shard,omitempty"`
	NstanceMachine string `json:"nstanceMachine,omitempty"`

	Reasons []Reason `json:"reasons"`
	// Drain is that of the Node, nil if it is not being drained.
	Drain *drains.Drain `json:"drain,omitempty"`
	// Unknown is what could not be read.
	Unknown []string `json:"unknown,omitempty"`
}

// Kind is the kind of Explanation.
const Kind = "Explanation"

// Reason is one cause.
type Reason struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	// Source is the object that says so.
	Source Source `json:"source"`
	// By is who has caused it. If it is empty, ByUnknown says why.
	By        string    `json:"by,omitempty"`
	ByUnknown string    `json:"byUnknown,omitempty"`
	At        time.Time `json:"at,omitzero"`
}

// Source is an object, and the field of it.
type Source struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Field     string `json:"field,omitempty"`
}

// String returns kind/name and the field.
func (s Source) String() string {
	text := s.Kind + "/" + s.Name
	if s.Field != "" {
		text += " " + s.Field
	}
	return text
}

// Types of reasons.
const (
	DrainRequested    = "DrainRequested"
	DrainTimedOut     = "DrainTimedOut"
	Replicas          = "Replicas"
	ShardSize         = "ShardSize"
	ScaleDown         = "ScaleDown"
	Configuration     = "Configuration"
	DeletionCandidate = "DeletionCandidate"
	RemoveFirst       = "RemoveFirst"
	MachineDeleted    = "MachineDeleted"
	HealthCheck       = "HealthCheck"
	PoolDeleted       = "PoolDeleted"
	DeletionPolicy    = "DeletionPolicy"
	ShardRemoved      = "ShardRemoved"
	Guard             = "Guard"
	Lent              = "Lent"
	Shortfall         = "Shortfall"
	Paused            = "Paused"
	ShardUnreachable  = "ShardUnreachable"
	Pod               = "Pod"
	Owner             = "Owner"
	Condition         = "Condition"
)
