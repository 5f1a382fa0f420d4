// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"maps"
	"slices"
	"unicode/utf8"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// ShardSettings returns the settings of a spec as the shards get them, without candidates
// (ShardGroupSettings).
func ShardSettings(spec v1beta1.GroupSettings) shard.GroupSettings {
	settings := shard.GroupSettings{
		Template:     spec.Template,
		InstanceType: spec.InstanceType,
		Vars:         spec.Vars,

		DrainTimeoutSeconds: spec.DrainTimeoutSeconds,

		Node:               shardNode(spec.Node),
		ReturnAfterSeconds: spec.ReturnAfterSeconds,
	}
	for _, id := range spec.Subnets {
		settings.Subnets = append(settings.Subnets, string(id))
	}
	for _, key := range spec.LoadBalancers {
		settings.LoadBalancers = append(settings.LoadBalancers, string(key))
	}
	return settings
}

// SpecSettings returns the spec whose ShardSettings are settings, for a group that is imported.
// PoolCandidates returns its candidates.
func SpecSettings(settings shard.GroupSettings) v1beta1.GroupSettings {
	spec := v1beta1.GroupSettings{
		Template:     settings.Template,
		InstanceType: settings.InstanceType,
		Vars:         maps.Clone(settings.Vars),

		DrainTimeoutSeconds: settings.DrainTimeoutSeconds,

		Node:               specNode(settings.Node),
		ReturnAfterSeconds: settings.ReturnAfterSeconds,
	}
	for _, id := range settings.Subnets {
		spec.Subnets = append(spec.Subnets, v1beta1.Identifier(id))
	}
	for _, key := range settings.LoadBalancers {
		spec.LoadBalancers = append(spec.LoadBalancers, v1beta1.Identifier(key))
	}
	return spec
}

// SettingsInEffect reports whether a server reports settings as effective. An empty setting
// leaves the choice to the server, which also adds its own vars.
func SettingsInEffect(settings, effective shard.GroupSettings) bool {
	for name, value := range settings.Vars {
		if got, ok := effective.Vars[name]; !ok || got != value {
			return false
		}
	}
	return (settings.InstanceType == "" || settings.InstanceType == effective.InstanceType) &&
		(settings.Template == "" || settings.Template == effective.Template) &&
		(len(settings.Subnets) == 0 || slices.Equal(settings.Subnets, effective.Subnets)) &&
		(len(settings.LoadBalancers) == 0 || slices.Equal(settings.LoadBalancers, effective.LoadBalancers)) &&
		(settings.DrainTimeoutSeconds == 0 || settings.DrainTimeoutSeconds == effective.DrainTimeoutSeconds) &&
		nodeInEffect(settings.Node, effective.Node) &&
		(len(settings.Candidates) == 0 || shard.EqualCandidates(settings.Candidates, effective.Candidates)) &&
		(settings.ReturnAfterSeconds == 0 || settings.ReturnAfterSeconds == effective.ReturnAfterSeconds)
}

// ShardGrant returns the grant of a shard group as it is sent, nil without a grant.
func ShardGrant(grant *v1beta1.RotationGrant) *shard.RotationGrant {
	if grant == nil {
		return nil
	}
	sent := &shard.RotationGrant{
		MaxSurge: grant.MaxSurge, MaxUnavailable: grant.MaxUnavailable, UpToDate: grant.UpToDate, MaxAgeSeconds: grant.MaxAgeSeconds,
		Target: grant.Target,
	}
	if grant.NotAfter != nil {
		sent.NotAfter = grant.NotAfter.Time
	}
	if grant.After != nil {
		sent.After = grant.After.Time
	}
	return sent
}

// ReportedDeletionOrder returns status.deletionOrder of a shard group: the order that its server
// reports, with the provider ids. An entry that the API server would reject ends the list, because
// a list without it would be another order.
func ReportedDeletionOrder(group *shard.Group) []v1beta1.NextDeletion {
	providerIDs := make(map[string]string, len(group.Instances))
	for _, instance := range group.Instances {
		providerIDs[instance.ID] = instance.ProviderID
	}
	var order []v1beta1.NextDeletion
	for _, next := range group.DeletionOrder[:min(len(group.DeletionOrder), v1beta1.MaxDeletionOrder)] {
		entry := v1beta1.NextDeletion{Instance: next.InstanceID, ProviderID: providerIDs[next.InstanceID], Reason: next.Reason}
		if !fits(entry.Instance, v1beta1.MaxNextDeletionID) || !fits(entry.ProviderID, v1beta1.MaxNextDeletionProviderID) ||
			utf8.RuneCountInString(entry.Reason) > v1beta1.MaxNextDeletionReason {
			break
		}
		order = append(order, entry)
	}
	return order
}

// fits reports whether a text is not empty and has at most so many characters.
func fits(text string, most int) bool { return text != "" && utf8.RuneCountInString(text) <= most }

// ReportedConfig returns the settings in effect for the status of a shard group, within the
// limits of its definition.
func ReportedConfig(effective shard.GroupSettings) *v1beta1.GroupConfig {
	config := &v1beta1.GroupConfig{
		Template:     controller.Truncate(effective.Template, v1beta1.MaxReportedLength),
		InstanceType: controller.Truncate(effective.InstanceType, v1beta1.MaxReportedLength),
		Vars:         maps.Clone(effective.Vars),

		DrainTimeoutSeconds: max(effective.DrainTimeoutSeconds, 0),

		Node:               reportedNode(effective.Node),
		ReturnAfterSeconds: max(effective.ReturnAfterSeconds, 0),
	}
	for _, id := range effective.Subnets[:min(len(effective.Subnets), v1beta1.MaxReportedSubnets)] {
		config.Subnets = append(config.Subnets, controller.Truncate(id, v1beta1.MaxReportedLength))
	}
	for _, key := range effective.LoadBalancers[:min(len(effective.LoadBalancers), v1beta1.MaxReportedSubnets)] {
		config.LoadBalancers = append(config.LoadBalancers, controller.Truncate(key, v1beta1.MaxReportedLength))
	}
	return config
}
