// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"maps"
	"slices"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
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
