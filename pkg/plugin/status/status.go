// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package status builds and prints what the plugin shows: the tree of a pool with its shards,
// instances and Nodes, and the drains in progress with the reasons that block them.
package status

import (
	"time"
)

// Status is the output of "kubectl nstance status".
type Status struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Pools      []Pool `json:"pools"`
	// OnDemand are the instances that belong to no pool.
	OnDemand        []Machine `json:"onDemand"`
	OnDemandUnknown string    `json:"onDemandUnknown,omitempty"`
	// Drains are the drains of the Nodes of these instances.
	Drains        []Drain `json:"drains"`
	DrainsUnknown string  `json:"drainsUnknown,omitempty"`
	// Unknown lists the objects that could not be read, such as "forbidden to list pods".
	Unknown []string `json:"unknown,omitempty"`
}

// Kind is the kind of Status.
const Kind = "Status"

// Pool is an NstanceMachinePool.
type Pool struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Group     string    `json:"group"`
	Created   time.Time `json:"created"`
	// Replicas are the replicas of the MachinePool, nil if they are not known or not set.
	Replicas        *int32 `json:"replicas,omitempty"`
	ReplicasUnknown string `json:"replicasUnknown,omitempty"`
	// Size is the number of instances that the shards are to run.
	Size     *int32 `json:"size,omitempty"`
	Actual   *int32 `json:"actual,omitempty"`
	Draining *int32 `json:"draining,omitempty"`
	// ReadyNodes is the number of instances whose Node is Ready, nil if Nodes are not known.
	ReadyNodes *int32 `json:"readyNodes,omitempty"`
	// Problems are the conditions that report a problem.
	Problems []Condition `json:"problems,omitempty"`
	// Candidates are the candidates of the pool, in their order, empty if it has none.
	Candidates []Candidate `json:"candidates,omitempty"`
	// CandidatesUnknown names the shards that do not report the numbers of their candidates.
	CandidatesUnknown []string `json:"candidatesUnknown,omitempty"`
	// Preferred is True, False or Unknown: whether each instance is of the best candidate that has room
	// for it. It is empty without candidates.
	Preferred string  `json:"preferred,omitempty"`
	Shards    []Shard `json:"shards"`
	// ShardsUnknown is why Shards are not known.
	ShardsUnknown string `json:"shardsUnknown,omitempty"`
}

// Candidate is an instance type in a market of which instances of a pool are. A candidate has several
// entries if its type or market differs among the shards.
type Candidate struct {
	Name string `json:"name"`
	// Type and Market are in force, as shards report them.
	Type   string `json:"type,omitempty"`
	Market string `json:"market,omitempty"`
	// Instances is the number of instances, as the shards have reported last.
	Instances int32 `json:"instances"`
	// Max is the maximum in the spec of the pool, empty without one.
	Max string `json:"max,omitempty"`
	// Unavailable are the reasons for which shards create no instance of the candidate now.
	Unavailable []string `json:"unavailable,omitempty"`
}

// Shard is an NstanceShardGroup.
type Shard struct {
	Name       string      `json:"name"`
	ShardGroup string      `json:"shardGroup"`
	Created    time.Time   `json:"created"`
	Size       int32       `json:"size"`
	Actual     *int32      `json:"actual,omitempty"`
	Draining   *int32      `json:"draining,omitempty"`
	ReadyNodes *int32      `json:"readyNodes,omitempty"`
	Problems   []Condition `json:"problems,omitempty"`
	Reachable  string      `json:"reachable"` // True, False or Unknown
	// ReachableSince is when Reachable has changed.
	ReachableSince time.Time  `json:"reachableSince,omitzero"`
	Lent           string     `json:"lent,omitempty"`
	Instances      []Instance `json:"instances"`
	// UnidentifiedDrains is the number of drains whose Node is not identified: it is not
	// found, or another client has cordoned it.
	UnidentifiedDrains int32 `json:"unidentifiedDrains,omitempty"`
}

// Instance is an instance of a shard.
type Instance struct {
	// Name is the id on the shard if an object has it, and otherwise the last part of the
	// provider id.
	Name       string    `json:"name"`
	ProviderID string    `json:"providerID,omitempty"`
	Machine    string    `json:"machine,omitempty"`
	Created    time.Time `json:"created,omitzero"`
	State      string    `json:"state"`
	Node       *Node     `json:"node,omitempty"`
	// NodeUnknown is why the Node is not known.
	NodeUnknown string `json:"nodeUnknown,omitempty"`
	// DrainUnknown is why it is not known how far the drain of the Node is.
	DrainUnknown string `json:"drainUnknown,omitempty"`
}

// States of an instance.
const (
	StateRunning  = "Running"
	StatePending  = "Pending"
	StateDeleting = "Deleting"
	StateNoNode   = "NoNode"
	StateNotReady = "NotReady"
	// StateAmbiguous: several Nodes have the provider id.
	StateAmbiguous = "AmbiguousProviderID"
	StateUnknown   = "Unknown"
)

// Node is the Node of an instance.
type Node struct {
	Name          string    `json:"name"`
	Created       time.Time `json:"created"`
	Ready         string    `json:"ready"` // True, False or Unknown
	ReadySince    time.Time `json:"readySince,omitzero"`
	Unschedulable bool      `json:"unschedulable,omitempty"`
	// Type and Zone are the instance type and the zone in the labels of the Node.
	Type string `json:"type,omitempty"`
	Zone string `json:"zone,omitempty"`
}

// Machine is an instance that belongs to no pool.
type Machine struct {
	Instance
	Namespace string `json:"namespace"`
	Group     string `json:"group"`
	Shard     string `json:"shard,omitempty"`
	// Pod is namespace/name of the Pod that has requested the machine, empty for another
	// owner.
	Pod      string      `json:"pod,omitempty"`
	Problems []Condition `json:"problems,omitempty"`
}

// Condition is a condition that reports a problem.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
}
