// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package groups stores the groups of a shard: the static groups of the
// configuration, the dynamic groups that operators create, and the rules for
// merging the two.
package groups

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Group is a group after merging the template, the configuration and the stored
// changes of operators. It is immutable.
type Group struct {
	Key instance.GroupKey
	// Settings are the settings in effect: the template's settings, overlaid with the
	// group's.
	Settings
	// Declared are the settings that an operator declared last, or nil.
	Declared *Settings
	// OperatorVars are the vars that operators have set. The other Vars are inherited from the
	// configuration.
	OperatorVars map[string]string
	// Revision is the revision of the last change that had a revision, or nil.
	Revision *Revision
	// Kind is the template's, the prefix of instance ids.
	Kind string
	// Size is the number of managed instances that the group should have.
	Size int32
	// MinSize is the smallest size that operators may set.
	MinSize int32
	// RemoveFirst are the deletion candidates that the operator sent: they are
	// terminated first when there are more than Size. They may not exist.
	RemoveFirst []string
	// Rotation is the grant that the operator sent, nil without a grant.
	Rotation *RotationGrant
	// Replace are the ids of instances that the operator wants to be replaced. They may not exist.
	Replace []string
	// Static is true for a group of the configuration.
	Static bool
	// Arch is the template's architecture.
	Arch string
	// Args are the provider's arguments, merged from the defaults, the template
	// and the group, not rendered.
	Args map[string]any
	// Userdata is the template's userdata or the default, not rendered.
	Userdata config.Userdata
	// Files are the agent's files of the defaults and the template.
	Files map[string]config.File
	// DrainTimeout is how long instances may take to drain. Zero means that
	// they are terminated at once.
	DrainTimeout time.Duration
	// KeepUnhealthy is true if instances that run and are unhealthy are not replaced.
	KeepUnhealthy bool
	// RuntimeConfigHash is a digest of the settings that agents can receive
	// while an instance runs: Vars, Files and Node.
	RuntimeConfigHash string
	// InfraConfigHash is a digest of the settings that only a new instance can
	// receive: Args, InstanceType, SubnetPools, Userdata, Kind and Arch. With candidates it is the
	// digest of the first candidate, and IsCurrent decides about instances.
	InfraConfigHash string
	// Variants are the candidates with what they mean, in their order. There are none without
	// candidates.
	Variants []Variant
	// ETag is a digest of the fields above. It changes when any of them does,
	// including RemoveFirst, because then the group must be reconciled.
	ETag string
	// Type is the catalogue entry of InstanceType.
	Type provider.InstanceType
	// Causes are the requests that led to the present state of the group. No hash and no ETag
	// covers them.
	Causes Causes
}

// Variant is a candidate of a group with the settings that it means.
type Variant struct {
	// Name is the name of the candidate, and Max its maximum.
	Name string
	Max  *int32
	// InstanceType and Args are the group's with the candidate. Market is the market that Args mean,
	// empty if it is not known.
	InstanceType string
	Market       string
	Type         provider.InstanceType
	Args         map[string]any
	// InfraConfigHash is the digest of the group with the candidate. A group without candidates that
	// has the same instance type and arguments has the same digest.
	InfraConfigHash string
}

// setVariants sets the variants from the other fields. The values were or will be validated: a market
// that is not possible changes no argument.
func (g *Group) setVariants(c *config.Config) {
	for _, candidate := range g.Candidates {
		v := Variant{Name: candidate.Name, Max: candidate.MaxInstances, InstanceType: cmp.Or(candidate.InstanceType, g.InstanceType), Args: g.Args}
		v.Type = c.Shard.Infra.InstanceTypes[v.InstanceType]
		if args, err := provider.MarketArgs(c.Shard.Infra.Options, g.Args, candidate.Market); err == nil {
			v.Args = args
		}
		v.Market = provider.MarketOf(c.Shard.Infra.Options, v.Args)
		g.Variants = append(g.Variants, v)
	}
}

// As returns the group as if the variant were its only candidate.
func (g *Group) As(v Variant) *Group {
	as := *g
	as.InstanceType, as.Type, as.Args, as.InfraConfigHash = v.InstanceType, v.Type, v.Args, v.InfraConfigHash
	as.Variants = nil
	return &as
}

// VariantOf returns the variant with a digest, nil if there is none.
func (g *Group) VariantOf(hash string) *Variant {
	for n := range g.Variants {
		if g.Variants[n].InfraConfigHash == hash {
			return &g.Variants[n]
		}
	}
	return nil
}

// IsCurrent reports whether an instance with this digest has the settings of the group, or of one of
// its candidates.
func (g *Group) IsCurrent(hash string) bool {
	if len(g.Variants) == 0 {
		return hash == g.InfraConfigHash
	}
	return g.VariantOf(hash) != nil
}

// Choices returns the candidates as instances are compared with them, nil without candidates.
func (g *Group) Choices() []candidates.Choice {
	var choices []candidates.Choice
	for _, v := range g.Variants {
		choices = append(choices, candidates.Choice{Hash: v.InfraConfigHash, Max: v.Max})
	}
	return choices
}

// InfraConfig identifies the settings that new instances receive: InfraConfigHash, or the digests and
// the maxima of all candidates.
func (g *Group) InfraConfig() string {
	if len(g.Variants) == 0 {
		return g.InfraConfigHash
	}
	var b strings.Builder
	for _, v := range g.Variants {
		fmt.Fprintf(&b, "%s*%d,", v.InfraConfigHash, ptr.Deref(v.Max, -1))
	}
	return b.String()
}

// replacesInstances reports whether instances with the settings of g are not current any more.
func (g *Group) replacesInstances(next *Group) bool {
	if len(g.Variants) == 0 {
		return !next.IsCurrent(g.InfraConfigHash)
	}
	return slices.ContainsFunc(g.Variants, func(v Variant) bool { return !next.IsCurrent(v.InfraConfigHash) })
}

// etagOrEmpty returns the ETag, or "" if there is no group.
func (g *Group) etagOrEmpty() string {
	if g == nil {
		return ""
	}
	return g.ETag
}

// Change is an operator's request to change a group. Size is always replaced:
// the protocol cannot distinguish a size of 0 from an unset one
// (docs/protocol.md#groups), so a change of another field must repeat the size,
// or it scales to zero. RemoveFirst belongs to the size and is always replaced
// too, and so are Rotation and Replace. Empty other fields leave the group unchanged, and Vars are added key by
// key. Args are rejected, see validate.
type Change struct {
	Settings
	// Declarative means that Settings are all settings that the client wants: settings of an
	// earlier declarative change that this change leaves out are removed.
	Declarative bool
	Size        int32
	RemoveFirst []string
	Rotation    *RotationGrant
	Replace     []string
	Args        map[string]string
	// Revision is the revision of the object that the change comes from, nil if the client
	// sends no revision: such a change is never older than another, and keeps the stored
	// revision.
	Revision *Revision
	// Replaces makes an older change accepted if it equals the stored revision or, for a
	// group without a revision, has the uid of Revision.
	Replaces *Revision
}

// RotationGrant bounds the replacement of instances that work and are outdated
// (docs/server.md#rotation). It is stored with the group: another leader continues within it.
type RotationGrant struct {
	// MaxSurge is how many instances there may be above the size.
	MaxSurge int32 `json:"max_surge"`
	// MaxUnavailable is by how many fewer instances than the size may work.
	MaxUnavailable int32 `json:"max_unavailable"`
	// UpToDate is the number of instances that are up to date from which on no replacement is
	// started.
	UpToDate int32 `json:"up_to_date"`
	// NotAfter is the time from which on no replacement is started; nil means no end.
	NotAfter *time.Time `json:"not_after,omitempty"`
	// After is a time: once it has passed, instances that were created before are outdated.
	After *time.Time `json:"after,omitempty"`
	// MaxAgeSeconds is the age at which an instance is outdated, if the configuration of the
	// shard has no smaller age. Zero leaves it to the configuration.
	MaxAgeSeconds int32 `json:"max_age_seconds,omitempty"`
	// Target is what instances were compared with when the numbers were decided, "" for any
	// (docs/server.md#rotation).
	Target string `json:"target,omitempty"`
}

// validate checks the values of a grant, which may be nil. A grant of 0 and 0 is valid: it replaces
// nothing.
func (g *RotationGrant) validate(path *field.Path) field.ErrorList {
	if g == nil {
		return nil
	}
	var problems field.ErrorList
	for _, number := range []struct {
		name  string
		value int32
	}{
		{"max_surge", g.MaxSurge}, {"max_unavailable", g.MaxUnavailable}, {"up_to_date", g.UpToDate},
		{"max_age_seconds", g.MaxAgeSeconds},
	} {
		if number.value < 0 {
			problems = append(problems, field.Invalid(path.Child(number.name), number.value, "must not be negative"))
		}
	}
	if len(g.Target) > maxIDLength {
		problems = append(problems, field.TooLong(path.Child("target"), "", maxIDLength))
	}
	return problems
}

// InvalidError rejects a change that is malformed or refers to something
// unknown. The same change is rejected until the configuration changes.
type InvalidError struct {
	Group    instance.GroupKey
	Problems field.ErrorList
}

// Error names every field with its value and the allowed values.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("group %s: %v", e.Group, e.Problems.ToAggregate())
}

// RestrictedError rejects the change of a field that only the configuration may
// set, because the group is static.
type RestrictedError struct {
	Group    instance.GroupKey
	Problems field.ErrorList
}

// Error names every field with its value and the allowed values.
func (e *RestrictedError) Error() string {
	return fmt.Sprintf("group %s is static: %v", e.Group, e.Problems.ToAggregate())
}

// StaleError rejects a request whose revision is older than an accepted revision. It does not
// judge the settings in the request.
type StaleError struct {
	Group    instance.GroupKey
	Revision Revision
	// Stored is the revision of the group, nil if it has no revision.
	Stored *Revision
}

// Error names both revisions.
func (e *StaleError) Error() string {
	switch {
	case e.Stored == nil:
		return fmt.Sprintf("group %s: the request has generation %d of object %s, whose group was deleted", e.Group, e.Revision.Generation, e.Revision.UID)
	case e.Stored.UID != e.Revision.UID:
		return fmt.Sprintf("group %s: the request has generation %d of object %s, which was replaced by object %s: the group has generation %d of that one",
			e.Group, e.Revision.Generation, e.Revision.UID, e.Stored.UID, e.Stored.Generation)
	default:
		return fmt.Sprintf("group %s: the request has generation %d of object %s, but the group has the newer generation %d",
			e.Group, e.Revision.Generation, e.Revision.UID, e.Stored.Generation)
	}
}
