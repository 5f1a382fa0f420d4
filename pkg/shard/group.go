// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shard holds what the operator says and knows about the shard servers:
// groups, endpoints and the kinds of failure. Its types are free of protobuf, so
// that controllers can use them without knowing the wire. The packages below it
// speak to the servers.
package shard

import (
	"maps"
	"slices"
)

// Group is one group as a shard server reports it. A Group taken from a cache
// shares its slices and map with the cache: read them, never write to them.
type Group struct {
	// Key is the group id inside the tenant.
	Key string
	// Tenant owns the group. Servers report only the tenant of the client
	// certificate.
	Tenant string
	// Template is the template in effect.
	Template string
	// Size is the number of managed instances that the server works towards.
	Size int32
	// InstanceType is the type in effect.
	InstanceType string
	// Subnets are the subnet pool ids in effect, in the order they are tried.
	Subnets []string
	// Vars are the server's own vars with ours merged over them.
	Vars map[string]string
	// Static is true for a group that the server's configuration names. Template
	// and subnets of such a group cannot be changed.
	Static bool
	// ETag is the server's digest of the merged configuration.
	ETag string
	// ActualSize is the number of running managed instances. On-demand instances
	// are not counted.
	ActualSize int32
	// ProviderIDs are the provider ids of those instances, as the server sorts
	// them.
	ProviderIDs []string
	// Deleting is true for a group that was deleted and is listed until its last
	// instance is gone. Servers that do not know this extension stop listing a
	// deleted group at once.
	Deleting bool
	// ListsInstances is true when the server tells of every managed instance.
	// Servers that do not know this extension do not, and choose by themselves
	// which instance goes.
	ListsInstances bool
	// Instances are the managed instances by id: pending ones too, and those that
	// are ending until they are gone.
	Instances []Instance
	// RemoveFirst are the ids that the server was last told to let go first.
	RemoveFirst []string
	// Node is what a Node of the group will be like, nil when the server does not
	// tell.
	Node *NodeShape
}

// Equal reports whether both groups say the same. No subnets and empty subnets
// are the same, and so it is with vars and provider ids: the wire knows no
// difference.
func (g Group) Equal(other Group) bool {
	return g.Key == other.Key &&
		g.Tenant == other.Tenant &&
		g.Template == other.Template &&
		g.Size == other.Size &&
		g.InstanceType == other.InstanceType &&
		slices.Equal(g.Subnets, other.Subnets) &&
		maps.Equal(g.Vars, other.Vars) &&
		g.Static == other.Static &&
		g.ETag == other.ETag &&
		g.ActualSize == other.ActualSize &&
		slices.Equal(g.ProviderIDs, other.ProviderIDs) &&
		g.Deleting == other.Deleting &&
		g.ListsInstances == other.ListsInstances &&
		slices.Equal(g.Instances, other.Instances) &&
		slices.Equal(g.RemoveFirst, other.RemoveFirst) &&
		g.Node.Equal(other.Node)
}

// GroupConfig is the whole of what the operator wants of a group on one shard.
// Size always counts, zero included. An empty Template, InstanceType or Subnets
// leaves the server's value as it is, and Vars are merged over the stored ones
// key by key: that is the wire contract of UpsertGroup. For a static group the
// server refuses any Subnets and any other Template.
type GroupConfig struct {
	Template     string
	Size         int32
	InstanceType string
	Subnets      []string
	Vars         map[string]string
	// RemoveFirst are ids of managed instances that go first when there are more
	// than Size. Unlike the rest it always replaces what was sent before.
	RemoveFirst []string
}
