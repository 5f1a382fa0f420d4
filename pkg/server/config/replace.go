// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
)

// CheckReplacement returns an error for every immutable field in which next
// differs from c: a server that runs cannot change its identity, its elections,
// its provider, its keys and its addresses.
func (c *Config) CheckReplacement(next *Config) field.ErrorList {
	before := map[string]string{}
	for _, f := range c.immutableFields() {
		before[f.Path.String()] = f.Value
	}
	var errs field.ErrorList
	for _, after := range next.immutableFields() {
		// Another provider may have other options.
		if value, found := before[after.Path.String()]; found && value != after.Value {
			errs = append(errs, field.Invalid(after.Path, after.Value, fmt.Sprintf("needs a restart of the server, which runs with %q", value)))
		}
	}
	return errs
}

func (c *Config) immutableFields() []provider.ImmutableField {
	cluster, shard := field.NewPath("cluster"), field.NewPath("shard")
	secrets, infra := cluster.Child("secrets"), shard.Child("infra")
	fields := []provider.ImmutableField{
		{Path: cluster.Child("id"), Value: c.ClusterID},
		{Path: secrets.Child("provider"), Value: c.Secrets.Provider},
		{Path: secrets.Child("prefix"), Value: c.Secrets.Prefix},
		{Path: secrets.Child("project"), Value: c.Secrets.Project},
		{Path: secrets.Child("cache_ttl"), Value: c.Secrets.CacheTTL.String()},
		{Path: secrets.Child("encryption_key"), Value: c.Secrets.EncryptionKey.String()},
		{Path: secrets.Child("old_encryption_keys"), Value: fmt.Sprint(c.Secrets.OldEncryptionKeys)},
		{Path: shard.Child("id"), Value: c.Shard.ID},
		{Path: infra.Child("provider"), Value: c.Shard.Infra.Provider},
		{Path: infra.Child("region"), Value: c.Shard.Infra.Region},
		{Path: infra.Child("zone"), Value: c.Shard.Infra.Zone},
	}
	if options := c.Shard.Infra.Options; options != nil {
		fields = append(fields, options.ImmutableFields(infra.Child("options"))...)
	}
	fields = append(fields, c.ClusterElection.immutableFields(cluster.Child("leader_election"))...)
	fields = append(fields, c.Shard.Election.immutableFields(shard.Child("leader_election"))...)
	fields = append(fields, immutableNetworkFields(shard.Child("leader_network"), c.Shard.LeaderNetwork)...)
	fields = append(fields, c.Shard.Bind.immutableFields(shard.Child("bind"))...)
	return append(fields, c.Shard.Advertise.immutableFields(shard.Child("advertise"))...)
}

func (e Election) immutableFields(path *field.Path) []provider.ImmutableField {
	return []provider.ImmutableField{
		{Path: path.Child("enabled"), Value: fmt.Sprint(e.Enabled)},
		{Path: path.Child("interval"), Value: e.Interval.String()},
		{Path: path.Child("timeout"), Value: e.Timeout.String()},
	}
}

func (a Addresses) immutableFields(path *field.Path) []provider.ImmutableField {
	var fields []provider.ImmutableField
	for _, l := range a.listeners(path) {
		fields = append(fields, provider.ImmutableField{Path: l.path, Value: l.address})
	}
	return fields
}
