// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"cmp"
	"maps"
	"slices"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// merge returns the group of key, merged from the configuration, which does not
// name dynamic groups, and from override, which is nil for a static group
// without changes. It does not validate references.
func merge(c *config.Config, key instance.GroupKey, override *stored) (*Group, error) {
	own, static := c.Groups[key.Tenant][key.Group]
	group := &Group{Key: key, Static: static}
	settings := Settings{Template: own.Template, InstanceType: own.InstanceType, Vars: own.Vars}
	if own.SubnetPool != "" {
		settings.SubnetPools = []string{own.SubnetPool}
	}
	if static {
		group.Size = c.Templates[own.Template].Size
		if own.Size != nil {
			group.Size = *own.Size
		}
	}
	if override != nil {
		group.Size, group.RemoveFirst, group.Declared = min(override.Size, config.MaxSize), override.RemoveFirst, override.Declared
		group.Revision = override.Revision
		configured := settings
		settings = settings.merge(override.Settings)
		if static {
			settings = settings.restricted(configured)
		} else {
			own.Args = override.Args
			own.LoadBalancers = known(c, override.LoadBalancers)
			if override.DrainTimeout != nil {
				own.DrainTimeout = &override.DrainTimeout.Duration
			}
		}
	}
	template := c.Templates[settings.Template]
	inherited := Settings{InstanceType: template.InstanceType, Vars: mergeMaps(c.Defaults.Vars, template.Vars)}
	if template.SubnetPool != "" {
		inherited.SubnetPools = []string{template.SubnetPool}
	}
	group.Settings = inherited.merge(settings)
	group.Kind, group.Arch = template.Kind, template.Arch
	group.Type = c.Shard.Infra.InstanceTypes[group.InstanceType]
	group.Args = config.MergeArgs(c.Defaults.Args, template.Args, own.Args)
	group.Files = mergeMaps(c.Defaults.Files, template.Files)
	group.Userdata = cmp.Or(template.Userdata, c.Defaults.Userdata)
	group.DrainTimeout = c.Shard.DefaultDrainTimeout
	if own.DrainTimeout != nil {
		group.DrainTimeout = *own.DrainTimeout
	}
	if group.LoadBalancers = own.LoadBalancers; group.LoadBalancers == nil {
		group.LoadBalancers = template.LoadBalancers
	}
	return group, group.setHashes()
}

// known returns the load balancers of a formerly static group that the configuration still
// has. Operators cannot change them, so that one that was removed must not make the
// configuration invalid.
func known(c *config.Config, keys []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		_, found := c.LoadBalancers[key]
		return !found
	})
}

// mergeMaps returns a map with the entries of all layers, of which later ones
// win. It returns nil if all layers are empty, and never modifies them.
func mergeMaps[V any](layers ...map[string]V) map[string]V {
	var merged map[string]V
	for _, layer := range layers {
		if merged == nil && len(layer) > 0 {
			merged = make(map[string]V, len(layer))
		}
		maps.Copy(merged, layer)
	}
	return merged
}
