// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"maps"
	"time"
)

// RotationGrant is how far a shard may replace outdated instances
// (docs/server.md#rotation).
type RotationGrant struct {
	// MaxSurge is how many instances there may be above the size.
	MaxSurge int32
	// MaxUnavailable is by how many fewer instances than the size may work.
	MaxUnavailable int32
	// UpToDate is the number of instances that are up to date from which on no replacement is
	// started.
	UpToDate int32
	// NotAfter is the time from which on no replacement is started; zero means no end.
	NotAfter time.Time
	// After is a time: once it has passed, instances that were created before are outdated. It may
	// be zero.
	After time.Time
	// MaxAgeSeconds is the age at which an instance is outdated, 0 for the age that the server's
	// configuration has.
	MaxAgeSeconds int32
	// Target is the RotationProgress.Target for which UpToDate was decided, "" for any.
	Target string
}

// Equal reports whether two grants, which may be nil, are equal.
func (g *RotationGrant) Equal(other *RotationGrant) bool {
	if g == nil || other == nil {
		return g == other
	}
	return g.MaxSurge == other.MaxSurge && g.MaxUnavailable == other.MaxUnavailable && g.UpToDate == other.UpToDate &&
		g.NotAfter.Equal(other.NotAfter) && g.After.Equal(other.After) && g.MaxAgeSeconds == other.MaxAgeSeconds &&
		g.Target == other.Target
}

// RotationProgress counts the managed instances of a group as its rotation does.
type RotationProgress struct {
	// Outdated are the numbers of instances that are outdated and not being deleted, by reason.
	Outdated map[string]int32
	// UpToDate is how many instances are up to date or missing, Above how many exist above the size,
	// with those that are being deleted, and Below how many fewer work than the size.
	UpToDate, Above, Below int32
	// Target is what the server compares instances with, as a text of its choice.
	Target string
	// ForcedAt is when the first outdated instance reaches the forced age, zero for never.
	ForcedAt time.Time
}

// Equal reports whether two reports, which may be nil, are equal.
func (p *RotationProgress) Equal(other *RotationProgress) bool {
	if p == nil || other == nil {
		return p == other
	}
	return p.UpToDate == other.UpToDate && p.Above == other.Above && p.Below == other.Below && p.Target == other.Target &&
		p.ForcedAt.Equal(other.ForcedAt) && maps.Equal(p.Outdated, other.Outdated)
}

// MaxOutdatedReasons is the number of reasons that the operator keeps of a group.
const MaxOutdatedReasons = 16
