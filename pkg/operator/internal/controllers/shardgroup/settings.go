// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// wantedSettings returns the settings to send. Template and subnets of a static
// group are set by the server's configuration, and the server rejects them.
func wantedSettings(spec v1beta1.GroupSettings, static bool) shard.GroupSettings {
	settings := shard.GroupSettings{
		Template:     spec.Template,
		InstanceType: spec.InstanceType,
		Vars:         spec.Vars,
	}
	for _, id := range spec.Subnets {
		settings.Subnets = append(settings.Subnets, string(id))
	}
	if static {
		settings.Template, settings.Subnets = "", nil
	}
	return settings
}

// staticConflict returns which settings of spec a static group cannot have, because the
// server's configuration sets other ones. They are not sent. It returns "" if there are
// none.
func staticConflict(spec *v1beta1.NstanceShardGroupSpec, group *shard.Group) string {
	if group == nil || !group.Static {
		return ""
	}
	var conflicts []string
	if spec.Template != "" && spec.Template != group.Template {
		conflicts = append(conflicts, fmt.Sprintf("template %q, the server has %q", spec.Template, group.Template))
	}
	subnets := make([]string, len(spec.Subnets))
	for i, id := range spec.Subnets {
		subnets[i] = string(id)
	}
	if len(subnets) > 0 && !slices.Equal(subnets, group.Subnets) {
		conflicts = append(conflicts, fmt.Sprintf("subnets %q, the server has %q", subnets, group.Subnets))
	}
	if len(conflicts) == 0 {
		return ""
	}
	return fmt.Sprintf("the group is static, and its server's configuration sets template and subnets; remove from the pool's spec: %s",
		strings.Join(conflicts, "; "))
}

// inEffect reports whether settings are part of those that the server reports as
// effective. An empty setting leaves the choice to the server, which also adds vars
// of its own.
func inEffect(settings, effective shard.GroupSettings) bool {
	for name, value := range settings.Vars {
		if got, ok := effective.Vars[name]; !ok || got != value {
			return false
		}
	}
	return (settings.InstanceType == "" || settings.InstanceType == effective.InstanceType) &&
		(settings.Template == "" || settings.Template == effective.Template) &&
		(len(settings.Subnets) == 0 || slices.Equal(settings.Subnets, effective.Subnets))
}

// reportedConfig returns the settings in effect for the status.
func reportedConfig(group *shard.Group) *v1beta1.GroupConfig {
	return &v1beta1.GroupConfig{
		Template:     group.Template,
		Subnets:      slices.Clone(group.Subnets),
		InstanceType: group.InstanceType,
		Vars:         maps.Clone(group.Vars),
	}
}

func applyConfig(config *v1beta1.GroupConfig) *applyv1beta1.GroupConfigApplyConfiguration {
	return applyv1beta1.GroupConfig().
		WithTemplate(config.Template).
		WithSubnets(config.Subnets...).
		WithInstanceType(config.InstanceType).
		WithVars(config.Vars)
}
