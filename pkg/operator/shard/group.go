// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"fmt"
	"slices"
)

// Group is a group that a shard server reports. A Group from a cache shares its slices and
// maps with the cache: they are read only.
type Group struct {
	// Key is the group id inside the tenant.
	Key string
	// Tenant owns the group. Servers report only groups of the tenant in the client
	// certificate.
	Tenant string
	// GroupSettings are the settings in effect: the server's own configuration, overridden by
	// the settings of UpsertGroup.
	GroupSettings
	// Declared are the settings of the last UpsertGroup that replaced all earlier settings,
	// empty before such a call. It is nil if the server does not report it: then the server
	// cannot remove settings either.
	Declared *GroupSettings
	// Size is the wanted number of managed instances.
	Size int32
	// KnownSettings is the highest number from 1020 up of a setting that the server knows, 0 if it
	// knows none of them.
	KnownSettings int32
	// MinSize is the smallest size that the server accepts for the group. It is 0 if the server
	// does not report it.
	MinSize int32
	// Static is true for a group in the server's own configuration. Template and
	// subnets of such a group cannot be changed.
	Static bool
	// ETag is the server's digest of the merged configuration.
	ETag string
	// ActualSize is the number of running managed instances, without on-demand
	// instances.
	ActualSize int32
	// ProviderIDs are the provider ids of the running managed instances, sorted by the server.
	ProviderIDs []string
	// Deleting: the group was deleted and is listed until its last instance is deleted.
	// Servers without this extension do not list a deleted group.
	Deleting bool
	// ListsInstances: the server reports every managed instance. Servers without this
	// extension ignore RemoveFirst too.
	ListsInstances bool
	// Instances are the managed instances by id, including pending and terminating instances.
	Instances []Instance
	// DeletionOrder has the first instances that run, in the order in which the server deletes
	// surplus instances. It is empty if the server does not report it.
	DeletionOrder []NextDeletion
	// RemoveFirst are the deletion candidates that the server stored last.
	RemoveFirst []string
	// Rotation is the grant that the server stored last, nil without a grant.
	Rotation *RotationGrant
	// Replace are the instances to replace that the server stored last.
	Replace []string
	// Progress is the progress of the rotation. It is nil if the server does not report it: then it
	// does not know grants either.
	Progress *RotationProgress
	// Shape is the expected shape of the group's Nodes, nil if the server does not report it.
	Shape *NodeShape
	// Revision is the revision of the last request that had a revision, empty before such a
	// request. It is nil if the server does not support revisions.
	Revision *Revision
	// Shortfall is the lack of capacity for managed instances. It is zero if capacity suffices
	// or the server does not report it.
	Shortfall Shortfall
	// CandidateUse are the numbers of instances of the candidates, in their order. It is empty without
	// candidates, and if the server does not report it.
	CandidateUse []CandidateUse
}

// Shortfall is a lack of capacity or quota of a provider.
type Shortfall struct {
	// Missing is the number of instances that the provider does not create for lack of
	// capacity.
	Missing int32
	// Message is the provider's text.
	Message string
}

// NextDeletion is an instance that is being deleted, or would be deleted if the group had a
// smaller size.
type NextDeletion struct {
	InstanceID string
	// Reason is why the instance is being deleted or is to be replaced, "" if only the size
	// decides.
	Reason string
}

// Equal reports whether two reports of a group are equal. A nil list or map equals an empty
// one.
func (g Group) Equal(other Group) bool {
	return g.Key == other.Key &&
		g.Tenant == other.Tenant &&
		g.GroupSettings.Equal(other.GroupSettings) &&
		equalDeclared(g.Declared, other.Declared) &&
		g.Size == other.Size &&
		g.KnownSettings == other.KnownSettings &&
		g.MinSize == other.MinSize &&
		g.Static == other.Static &&
		g.ETag == other.ETag &&
		g.ActualSize == other.ActualSize &&
		slices.Equal(g.ProviderIDs, other.ProviderIDs) &&
		g.Deleting == other.Deleting &&
		g.ListsInstances == other.ListsInstances &&
		slices.Equal(g.Instances, other.Instances) &&
		slices.Equal(g.DeletionOrder, other.DeletionOrder) &&
		slices.Equal(g.RemoveFirst, other.RemoveFirst) &&
		g.Rotation.Equal(other.Rotation) &&
		slices.Equal(g.Replace, other.Replace) &&
		g.Progress.Equal(other.Progress) &&
		g.Shape.Equal(other.Shape) &&
		equalRevision(g.Revision, other.Revision) &&
		g.Shortfall == other.Shortfall &&
		slices.Equal(g.CandidateUse, other.CandidateUse)
}

func equalDeclared(a, b *GroupSettings) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(*b)
}

// GroupConfig is the whole configuration of a group on a shard, as UpsertGroup sends it
// (docs/protocol.md#groups). Size is always set, even if it is 0. An empty setting removes the
// setting of an earlier call, if the server supports the extension; on other servers it
// changes nothing. For a static group the server rejects any Subnets and any other Template.
type GroupConfig struct {
	GroupSettings
	Size int32
	// RemoveFirst are ids of managed instances that the server deletes first if it has more
	// than Size. It replaces the list of an earlier call.
	RemoveFirst []string
	// Rotation is the grant of the rotation, nil for none. It replaces the grant of an earlier call.
	Rotation *RotationGrant
	// Replace are ids of managed instances that the server replaces whatever the grant says. It replaces the
	// list of an earlier call. A server that reports no progress ignores it.
	Replace []string
	// Revision is the revision of the configuration's object; it may be nil.
	Revision *Revision
	// Replaces is the revision that the server reports, if an administrator has decided to
	// replace it by an older revision, and otherwise nil. If the server reports no revision,
	// because the group was deleted, Replaces has the UID of Revision.
	Replaces *Revision
}

// Revision identifies a version of the object that a group's configuration comes from. A
// server that supports revisions rejects a request that is older than an accepted request
// (docs/protocol.md#revisions).
type Revision struct {
	// UID is the UID of the object. If the object is created again, its UID differs.
	UID string
	// Generation is the metadata.generation of the object.
	Generation int64
}

// String returns UID/GENERATION.
func (r Revision) String() string { return fmt.Sprintf("%s/%d", r.UID, r.Generation) }

func equalRevision(a, b *Revision) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
