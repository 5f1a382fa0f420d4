// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Effective returns the group with the overrides of one instance: the template, instance type,
// subnet pool, vars and load balancers in the record of an on-demand instance. It
// returns group itself if the record has no overrides. Size, drain timeout and digests
// are always the group's.
//
// In a group with candidates an instance has the type and the market of the candidate with the digest in
// its record. An instance type or a template of its own leaves the candidates out: they belong to
// the group's template.
//
// A template override replaces the group's template as if the group had been created with it:
// the group's own values still win. The error names every override that the configuration
// does not allow.
func Effective(c *config.Config, group *groups.Group, record *instance.Record) (*groups.Group, error) {
	if UsesCandidates(group, record) {
		if v := group.VariantOf(record.InfraConfigHash); v != nil {
			group = group.As(*v)
		}
	}
	if record.Template == "" && record.InstanceType == "" && record.SubnetPool == "" && len(record.Vars) == 0 && len(record.LoadBalancers) == 0 {
		return group, nil
	}
	effective := *group
	effective.Variants = nil
	var problems field.ErrorList
	if record.Template != "" && record.Template != group.Template {
		if err := c.CheckTemplate(field.NewPath("template"), record.Template); err != nil {
			// The other overrides depend on the template.
			return nil, err
		}
		replaceTemplate(c, &effective, record.Template)
	}
	if record.SubnetPool != "" {
		if err := c.Shard.CheckSubnetPool(field.NewPath("subnet_pool"), record.SubnetPool); err != nil {
			problems = append(problems, err)
		}
		effective.SubnetPools = []string{record.SubnetPool}
	}
	if record.InstanceType != "" {
		effective.InstanceType = record.InstanceType
	}
	if effective.InstanceType != group.InstanceType || effective.Arch != group.Arch {
		if err := c.CheckInstanceType(field.NewPath("instance_type"), effective.InstanceType, effective.Arch); err != nil {
			problems = append(problems, err)
		}
		effective.Type = c.Shard.Infra.InstanceTypes[effective.InstanceType]
	}
	if len(problems) > 0 {
		return nil, problems.ToAggregate()
	}
	effective.Vars = overlay(effective.Vars, record.Vars)
	if len(record.LoadBalancers) > 0 {
		// One that the configuration has lost must not keep the instance from its other settings.
		effective.LoadBalancers = slices.DeleteFunc(slices.Clone(record.LoadBalancers), func(key string) bool {
			_, known := c.LoadBalancers[key]
			return !known
		})
	}
	return &effective, nil
}

// UsesCandidates reports whether an instance is of one of the group's candidates: the group has
// candidates, and the instance neither a type nor another template of its own.
func UsesCandidates(group *groups.Group, record *instance.Record) bool {
	return len(group.Variants) > 0 && record.InstanceType == "" && (record.Template == "" || record.Template == group.Template)
}

// replaceTemplate changes group as if it had been created with another template.
func replaceTemplate(c *config.Config, group *groups.Group, name string) {
	before, after := c.Templates[group.Template], c.Templates[name]
	group.Template = name
	group.Kind, group.Arch = after.Kind, after.Arch
	// Values that differ from the old template are the group's own.
	if group.InstanceType == before.InstanceType && after.InstanceType != "" {
		group.InstanceType = after.InstanceType
	}
	if slices.Equal(group.SubnetPools, []string{before.SubnetPool}) && after.SubnetPool != "" {
		group.SubnetPools = []string{after.SubnetPool}
	}
	if slices.Equal(group.LoadBalancers, before.LoadBalancers) {
		group.LoadBalancers = after.LoadBalancers
	}
	group.Node = after.Node.Merge(group.Node.Beyond(before.Node))
	ownVars := maps.Clone(group.Vars)
	inherited := overlay(c.Defaults.Vars, before.Vars)
	maps.DeleteFunc(ownVars, func(name, value string) bool {
		given, found := inherited[name]
		return found && given == value
	})
	group.Vars = overlay(c.Defaults.Vars, after.Vars, ownVars)
	ownArgs := difference(group.Args, config.MergeArgs(c.Defaults.Args, before.Args))
	group.Args = config.MergeArgs(c.Defaults.Args, after.Args, ownArgs)
	group.Files = overlay(c.Defaults.Files, after.Files)
	group.Userdata = c.Defaults.Userdata
	if after.Userdata != (config.Userdata{}) {
		group.Userdata = after.Userdata
	}
}

// difference returns the arguments that give args when they are merged into base.
func difference(args, base map[string]any) map[string]any {
	own := map[string]any{}
	for name, value := range args {
		given, found := base[name]
		object, isObject := value.(map[string]any)
		below, isObjectBelow := given.(map[string]any)
		switch {
		case found && reflect.DeepEqual(value, given):
		case isObject && isObjectBelow:
			own[name] = difference(object, below)
		default:
			own[name] = value
		}
	}
	return own
}

// overlay merges the layers into a new map. Later layers win.
func overlay[V any](layers ...map[string]V) map[string]V {
	merged := map[string]V{}
	for _, layer := range layers {
		maps.Copy(merged, layer)
	}
	return merged
}

// Common returns the properties that the specs of all managed instances of group share: no
// id, subnet or userdata, and only arguments without a template. Whether a template gives the
// same value for all instances is unknown before it is rendered.
func Common(group *groups.Group) provider.Spec {
	args, _ := literal(group.Args)
	return provider.Spec{
		Group:    group.Key,
		Template: group.Template,
		Kind:     group.Kind,
		Type:     group.Type,
		Args:     args.(map[string]any),
	}
}

// literal returns value without strings that have a template. It returns false if nothing
// remains.
func literal(value any) (any, bool) {
	switch value := value.(type) {
	case string:
		return value, !strings.Contains(value, "{{")
	case map[string]any:
		kept := make(map[string]any, len(value))
		for name, below := range value {
			if below, ok := literal(below); ok {
				kept[name] = below
			}
		}
		return kept, true
	case []any:
		kept := make([]any, len(value))
		for n := range value {
			below, ok := literal(value[n])
			if !ok {
				// A list without one of its entries would be a different list.
				return nil, false
			}
			kept[n] = below
		}
		return kept, true
	default:
		return value, true
	}
}
