// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"maps"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// merge makes the group of key from what c says of it, which is nothing for a
// dynamic group, and override, which is nil for a static one that no operator
// changed. The references need not be right.
func merge(c *config.Config, key instance.GroupKey, override *stored) (*Group, error) {
	own, static := c.Groups[key.Tenant][key.Group]
	group := &Group{Key: key, Static: static}
	var pools []string
	if static {
		group.Size = c.Templates[own.Template].Size
		if own.Size != nil {
			group.Size = *own.Size
		}
		if own.SubnetPool != "" {
			pools = []string{own.SubnetPool}
		}
	}
	if override != nil {
		group.Size, group.RemoveFirst = override.Size, override.RemoveFirst
		own.InstanceType = either(override.InstanceType, own.InstanceType)
		own.Vars = union(own.Vars, override.Vars)
		if !static {
			own.Template = override.Template
			own.Args = override.Args
			pools = override.SubnetPools
			if override.DrainTimeout != nil {
				own.DrainTimeout = &override.DrainTimeout.Duration
			}
		}
	}
	template := c.Templates[own.Template]
	if len(pools) == 0 && template.SubnetPool != "" {
		pools = []string{template.SubnetPool}
	}
	group.Template = own.Template
	group.Kind, group.Arch = template.Kind, template.Arch
	group.InstanceType = either(own.InstanceType, template.InstanceType)
	group.Type = c.Shard.Infra.Kwok.InstanceTypes[group.InstanceType]
	group.SubnetPools = pools
	group.Vars = union(c.Defaults.Vars, template.Vars, own.Vars)
	group.Args = config.MergeArgs(c.Defaults.Args, template.Args, own.Args)
	group.Files = union(c.Defaults.Files, template.Files)
	group.Userdata = either(template.Userdata, c.Defaults.Userdata)
	group.DrainTimeout = c.Shard.DefaultDrainTimeout
	if own.DrainTimeout != nil {
		group.DrainTimeout = *own.DrainTimeout
	}
	return group, group.sign()
}

// either returns value unless it is the zero value.
func either[T comparable](value, fallback T) T {
	var zero T
	if value != zero {
		return value
	}
	return fallback
}

// union returns the layers as one, in which the later ones count; nil when all
// are empty. It changes none.
func union[V any](layers ...map[string]V) map[string]V {
	var merged map[string]V
	for _, layer := range layers {
		if merged == nil && len(layer) > 0 {
			merged = make(map[string]V, len(layer))
		}
		maps.Copy(merged, layer)
	}
	return merged
}
