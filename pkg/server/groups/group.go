// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package groups holds the groups of a shard: the static ones of the
// configuration, the dynamic ones that operators make, and the rules by which
// the two become one.
package groups

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// Group is a group with everything merged into it: template, configuration and
// what operators stored. Nobody changes it.
type Group struct {
	Key      instance.GroupKey
	Template string
	// Kind is the template's, the prefix of instance ids.
	Kind string
	// Size is how many managed instances are wanted.
	Size         int32
	InstanceType string
	// SubnetPools are pool ids in the order in which they are tried.
	SubnetPools []string
	// Vars are the template's, overlaid with the group's.
	Vars map[string]string
	// Static is true for a group that the configuration names.
	Static bool
	// Arch is the template's architecture.
	Arch string
	// Args are the provider's arguments: those of the defaults, the template and
	// the group, merged, not rendered.
	Args map[string]any
	// Userdata is the template's or else the default, not rendered.
	Userdata config.Userdata
	// Files are those of the defaults and the template, for agents.
	Files map[string]config.File
	// DrainTimeout is how long instances may take to drain. Zero means that they
	// go at once.
	DrainTimeout time.Duration
	// RuntimeConfigHash is a digest of what agents can be sent while an instance
	// runs: Vars and Files.
	RuntimeConfigHash string
	// InfraConfigHash is a digest of what takes another instance to change: Args,
	// InstanceType, SubnetPools, Userdata, Kind and Arch.
	InfraConfigHash string
	// ETag is a digest of the fields above: it differs when one of them does.
	ETag string
	// Type is what the catalogue says of InstanceType.
	Type instance.Type `json:"-"`
}

// Change is what an operator asks of a group. Size always replaces; the other
// fields leave the group as it is when they are empty, and Vars are added key
// by key.
type Change struct {
	Template     string
	Size         int32
	InstanceType string
	SubnetPools  []string
	Vars         map[string]string
	Args         map[string]string
}

// stored is what is kept of an operator's changes to one group, in the groups
// file too. Of a static group it overrides size, instance type and vars only.
type stored struct {
	Template     string            `json:"template,omitempty"`
	Size         int32             `json:"size"`
	InstanceType string            `json:"instance_type,omitempty"`
	SubnetPools  []string          `json:"subnet_pools,omitempty"`
	Vars         map[string]string `json:"vars,omitempty"`
	// WhenDropped is kept of a static group: what is stored instead when the
	// configuration drops it.
	WhenDropped *stored `json:"when_dropped,omitempty"`
}

// with returns what is stored after change. s may be nil. Restricted fields of
// a static group are not stored: the configuration alone decides them.
func (s *stored) with(change Change, static bool) *stored {
	next := stored{}
	if s != nil {
		next = *s
	}
	next.Size = change.Size
	next.InstanceType = either(change.InstanceType, next.InstanceType)
	next.Vars = union(next.Vars, change.Vars)
	if !static {
		next.Template = either(change.Template, next.Template)
		if len(change.SubnetPools) > 0 {
			next.SubnetPools = change.SubnetPools
		}
	}
	return &next
}

// asDynamic returns what has to be stored so that the group stays what it is
// without the configuration's naming it.
func (g *Group) asDynamic() *stored {
	return &stored{Template: g.Template, Size: g.Size, InstanceType: g.InstanceType, SubnetPools: g.SubnetPools, Vars: g.Vars}
}

// merge makes the group of key from what c says of it, which is nothing for a
// dynamic group, and override, which is nil for a static one that no operator
// changed. The references need not be right.
func merge(c *config.Config, key instance.GroupKey, override *stored) (*Group, error) {
	configured, static := c.Groups[key.Tenant][key.Group]
	group := &Group{Key: key, Static: static}
	var pools []string
	if static {
		template := c.Templates[configured.Template]
		group.Template = configured.Template
		group.Size = template.Size
		if configured.Size != nil {
			group.Size = *configured.Size
		}
		group.InstanceType = configured.InstanceType
		group.Vars = configured.Vars
		if configured.SubnetPool != "" {
			pools = []string{configured.SubnetPool}
		}
	}
	if override != nil {
		group.Size = override.Size
		group.InstanceType = either(override.InstanceType, group.InstanceType)
		group.Vars = union(group.Vars, override.Vars)
		if !static {
			group.Template = override.Template
			pools = override.SubnetPools
		}
	}
	template := c.Templates[group.Template]
	group.Kind = template.Kind
	group.InstanceType = either(group.InstanceType, template.InstanceType)
	group.Type = c.Shard.Infra.Kwok.InstanceTypes[group.InstanceType]
	group.Vars = union(template.Vars, group.Vars)
	if len(pools) == 0 && template.SubnetPool != "" {
		pools = []string{template.SubnetPool}
	}
	group.SubnetPools = pools
	return group, group.sign()
}

// sign computes the ETag of what has been filled in.
func (g *Group) sign() error {
	// Maps are encoded in the order of their keys, and union never returns an
	// empty one, so equal groups have equal text.
	text, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("computing the etag of group %s: %w", g.Key, err)
	}
	sum := sha256.Sum256(text)
	g.ETag = hex.EncodeToString(sum[:])
	return nil
}

// either returns value unless it is empty.
func either(value, fallback string) string {
	if value != "" {
		return value
	}
	return fallback
}

// union returns base overlaid with over; nil when both are empty. It changes
// neither.
func union(base, over map[string]string) map[string]string {
	if len(base)+len(over) == 0 {
		return nil
	}
	merged := make(map[string]string, len(base)+len(over))
	maps.Copy(merged, base)
	maps.Copy(merged, over)
	return merged
}
