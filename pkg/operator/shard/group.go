// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "slices"

// Group is a group as a shard server reports it. A Group from a cache shares its
// slices and maps with the cache: they are read only.
type Group struct {
	// Key is the group id inside the tenant.
	Key string
	// Tenant owns the group. Servers report only the tenant of the client
	// certificate.
	Tenant string
	// GroupSettings are the settings in effect: the server's own configuration with
	// the settings of UpsertGroup merged over it.
	GroupSettings
	// Declared are the settings of the last UpsertGroup that replaced all earlier
	// ones, empty when there was none. It is nil when the server does not report it:
	// then it cannot remove settings either.
	Declared *GroupSettings
	// Size is the number of managed instances that the server works towards.
	Size int32
	// Static is true for a group in the server's own configuration. Template and
	// subnets of such a group cannot be changed.
	Static bool
	// ETag is the server's digest of the merged configuration.
	ETag string
	// ActualSize is the number of running managed instances, without on-demand
	// instances.
	ActualSize int32
	// ProviderIDs are the provider ids of those instances, sorted by the server.
	ProviderIDs []string
	// Deleting is true for a group that was deleted and is listed until its last
	// instance is deleted. Servers without this extension stop listing a deleted
	// group at once.
	Deleting bool
	// ListsInstances is true when the server reports every managed instance. Servers
	// without this extension do not, and ignore RemoveFirst.
	ListsInstances bool
	// Instances are the managed instances by id, pending and terminating ones
	// included.
	Instances []Instance
	// RemoveFirst are the deletion candidates that the server stored last.
	RemoveFirst []string
	// Node is the expected shape of the group's Nodes, nil when the server does not
	// report it.
	Node *NodeShape
	// Revision is that of the last request that had one, empty when none had. It is
	// nil when the server does not support revisions.
	Revision *Revision
	// Shortfall is the lack of capacity for managed instances, the zero value when there
	// is none, or the server does not report it.
	Shortfall Shortfall
}

// Shortfall is a lack of capacity or quota of a provider.
type Shortfall struct {
	// Missing is the number of instances that the provider does not create for it.
	Missing int32
	// Message is the reason as the provider names it.
	Message string
}

// Equal reports whether two reports of a group are the same. A nil list or map
// equals an empty one.
func (g Group) Equal(other Group) bool {
	return g.Key == other.Key &&
		g.Tenant == other.Tenant &&
		g.GroupSettings.Equal(other.GroupSettings) &&
		equalDeclared(g.Declared, other.Declared) &&
		g.Size == other.Size &&
		g.Static == other.Static &&
		g.ETag == other.ETag &&
		g.ActualSize == other.ActualSize &&
		slices.Equal(g.ProviderIDs, other.ProviderIDs) &&
		g.Deleting == other.Deleting &&
		g.ListsInstances == other.ListsInstances &&
		slices.Equal(g.Instances, other.Instances) &&
		slices.Equal(g.RemoveFirst, other.RemoveFirst) &&
		g.Node.Equal(other.Node) &&
		equalRevision(g.Revision, other.Revision) &&
		g.Shortfall == other.Shortfall
}

func equalDeclared(a, b *GroupSettings) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(*b)
}

// GroupConfig is the whole configuration of a group on one shard, as UpsertGroup
// sends it (docs/protocol.md#groups). Size is always set, zero included. An empty
// setting removes what an earlier call set, on servers that know the extension; on
// others it changes nothing. For a static group the server rejects any Subnets and
// any other Template.
type GroupConfig struct {
	GroupSettings
	Size int32
	// RemoveFirst are ids of managed instances that the server deletes first when
	// there are more than Size. It replaces what was sent before.
	RemoveFirst []string
	// Revision is that of the object that the configuration comes from, nil for none.
	Revision *Revision
	// Replaces is the revision that the server reports, if an administrator has
	// decided to replace it by an older one, and otherwise nil. If the server reports
	// none, because the group was deleted, it has the UID of Revision.
	Replaces *Revision
}
