// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/puidv7"
)

// validate returns every rule that is broken, in the order of the keys.
func (c *Config) validate(providers provider.Registry) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, c.validateCluster(field.NewPath("cluster"))...)
	errs = append(errs, c.Shard.validate(field.NewPath("shard"), providers)...)
	errs = append(errs, c.validateCertificates(field.NewPath("certificates"))...)
	errs = append(errs, c.validateDefaults(field.NewPath("defaults"))...)
	errs = append(errs, c.validateLoadBalancers(field.NewPath("load_balancers"))...)
	for _, name := range slices.Sorted(maps.Keys(c.Templates)) {
		errs = append(errs, c.validateTemplate(field.NewPath("templates").Child(name), name)...)
	}
	for _, tenant := range slices.Sorted(maps.Keys(c.Groups)) {
		path := field.NewPath("groups").Child(tenant)
		errs = append(errs, c.validateTenant(path, tenant)...)
		for _, name := range slices.Sorted(maps.Keys(c.Groups[tenant])) {
			errs = append(errs, validation.Identifier(path.Child(name), name)...)
			errs = append(errs, c.validateGroup(path.Child(name), tenant, c.Groups[tenant][name])...)
		}
	}
	return errs
}

// validateCluster requires a cluster id that differs in form from an instance id:
// an operator is identified by the former and an agent by the latter.
func (c *Config) validateCluster(path *field.Path) field.ErrorList {
	errs := validation.Identifier(path.Child("id"), c.ClusterID)
	if _, err := puidv7.Parse(c.ClusterID); err == nil {
		errs = append(errs, field.Invalid(path.Child("id"), c.ClusterID, "must not have the form of an instance id"))
	}
	errs = append(errs, c.ClusterElection.validate(path.Child("leader_election"))...)
	return append(errs, c.Secrets.validate(path.Child("secrets"))...)
}

// validate requires a timeout of three intervals, so that a leader that misses one
// or two renewals keeps its lease.
func (e Election) validate(path *field.Path) field.ErrorList {
	errs := validation.Positive(path.Child("interval"), e.Interval)
	errs = append(errs, validation.Positive(path.Child("timeout"), e.Timeout)...)
	if len(errs) == 0 && e.Interval > e.Timeout/3 {
		errs = append(errs, field.Invalid(path.Child("interval"), e.Interval.String(), fmt.Sprintf("must be at most a third of timeout %s", e.Timeout)))
	}
	return errs
}

// ValidateElections requires that leaders renew their locks no more often than the storage lets one
// object be written.
func (c *Config) ValidateElections(minWriteInterval time.Duration) field.ErrorList {
	var errs field.ErrorList
	for _, part := range []struct {
		name     string
		election Election
	}{{"cluster", c.ClusterElection}, {"shard", c.Shard.Election}} {
		if part.election.Enabled && part.election.Interval < minWriteInterval {
			errs = append(errs, field.Invalid(field.NewPath(part.name, "leader_election", "interval"), part.election.Interval.String(),
				fmt.Sprintf("must be at least %s: the storage lets no object be written more often", minWriteInterval)))
		}
	}
	return errs
}

// validateTenant requires that {cluster}--{tenant}, the name of a Cluster of
// Cluster API, is short enough for the value of a label.
func (c *Config) validateTenant(path *field.Path, tenant string) field.ErrorList {
	errs := validation.Identifier(path, tenant)
	name := c.ClusterID + identifier.Separator + tenant
	if len(errs) == 0 && len(name) > utilvalidation.LabelValueMaxLength {
		errs = append(errs, field.Invalid(path, tenant, fmt.Sprintf("makes the name %q, which has %d characters, at most %d are allowed", name, len(name), utilvalidation.LabelValueMaxLength)))
	}
	return errs
}

func (c *Config) validateDefaults(path *field.Path) field.ErrorList {
	errs := c.Defaults.Userdata.validate(path.Child("userdata"))
	errs = append(errs, c.validateArgs(path.Child("args"), c.Defaults.Args)...)
	return append(errs, c.validateFiles(path.Child("files"), c.Defaults.Files)...)
}

func (c *Config) validateTemplate(path *field.Path, name string) field.ErrorList {
	template := c.Templates[name]
	var errs field.ErrorList
	errs = append(errs, validation.Identifier(path, name)...)
	if err := puidv7.ValidatePrefix(template.Kind); err != nil {
		errs = append(errs, field.Invalid(path.Child("kind"), template.Kind, "must be three lower case letters"))
	}
	errs = append(errs, provider.ValidateArch(path.Child("arch"), template.Arch)...)
	errs = append(errs, validateSize(path.Child("size"), template.Size)...)
	if template.InstanceType != "" {
		if err := c.CheckInstanceType(path.Child("instance_type"), template.InstanceType, template.Arch); err != nil {
			errs = append(errs, err)
		}
	}
	if template.SubnetPool != "" {
		if err := c.Shard.CheckSubnetPool(path.Child("subnet_pool"), template.SubnetPool); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, candidates.Validate(path.Child(candidatesKey), template.Candidates)...)
	errs = append(errs, c.CheckCandidates(path.Child(candidatesKey), template.Candidates, template.Arch, MergeArgs(c.Defaults.Args, template.Args))...)
	errs = append(errs, candidates.ValidateReturn(path.Child(returnAfterKey), template.ReturnAfterSeconds, template.Candidates)...)
	errs = append(errs, validateTenants(path.Child("tenants"), template.Tenants)...)
	errs = append(errs, template.Limits.validate(path.Child("limits"))...)
	errs = append(errs, c.validateLoadBalancerKeys(path.Child("load_balancers"), template.LoadBalancers)...)
	errs = append(errs, template.Node.Validate(path.Child("node"))...)
	errs = append(errs, template.Userdata.validate(path.Child("userdata"))...)
	errs = append(errs, c.validateArgs(path.Child("args"), template.Args)...)
	return append(errs, c.validateFiles(path.Child("files"), template.Files)...)
}

// validateGroup checks the group's own values, and that the template has the values that the
// group leaves out.
func (c *Config) validateGroup(path *field.Path, tenant string, group Group) field.ErrorList {
	var errs field.ErrorList
	if group.Size != nil {
		errs = append(errs, validateSize(path.Child("size"), *group.Size)...)
	}
	errs = append(errs, c.validateLimits(path.Child("limits"), group)...)
	if group.SubnetPool != "" {
		if err := c.Shard.CheckSubnetPool(path.Child("subnet_pool"), group.SubnetPool); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, c.validateArgs(path.Child("args"), group.Args)...)
	errs = append(errs, c.validateLoadBalancerKeys(path.Child("load_balancers"), group.LoadBalancers)...)
	errs = append(errs, group.Node.Validate(path.Child("node"))...)
	if err := c.CheckTemplate(path.Child("template"), group.Template); err != nil {
		return append(errs, err)
	}
	template := c.Templates[group.Template]
	if len(template.Tenants) > 0 && !template.isFor(tenant) {
		errs = append(errs, field.Invalid(path.Child("template"), group.Template, fmt.Sprintf("is not for tenant %q, only for %s (tenants of the template)", tenant, strings.Join(template.Tenants, ", "))))
	}
	switch {
	case group.InstanceType != "":
		if err := c.CheckInstanceType(path.Child("instance_type"), group.InstanceType, template.Arch); err != nil {
			errs = append(errs, err)
		}
	case template.InstanceType == "":
		errs = append(errs, field.Required(path.Child("instance_type"), fmt.Sprintf("template %q has none", group.Template)))
	}
	errs = append(errs, c.validateGroupCandidates(path, group)...)
	if group.SubnetPool == "" && template.SubnetPool == "" {
		errs = append(errs, field.Required(path.Child("subnet_pool"), fmt.Sprintf("template %q has none", group.Template)))
	}
	return errs
}

// CheckInstanceType returns an error for path unless the provider has an
// instance type of that name and of the template's architecture.
func (c *Config) CheckInstanceType(path *field.Path, name, arch string) *field.Error {
	if c.Shard.Infra.InstanceTypes == nil || len(provider.ValidateArch(path, arch)) > 0 {
		// An unknown provider or architecture has its own error.
		return nil
	}
	types := c.Shard.Infra.InstanceTypes
	if t, found := types[name]; found && t.Arch == arch {
		return nil
	}
	return field.Invalid(path, name, fmt.Sprintf("no instance type of architecture %q, known are %s", arch, validation.Keys(types.OfArch(arch))))
}

// CheckLoadBalancer returns an error for path unless key is the key of a load balancer.
func (c *Config) CheckLoadBalancer(path *field.Path, key string) *field.Error {
	if _, found := c.LoadBalancers[key]; !found {
		return field.Invalid(path, key, "unknown load balancer, known are "+validation.Keys(c.LoadBalancers))
	}
	return nil
}

// CheckSubnetPool returns an error for path unless pool is a subnet pool.
func (s *Shard) CheckSubnetPool(path *field.Path, pool string) *field.Error {
	if _, found := s.SubnetPools[pool]; !found {
		return field.Invalid(path, pool, "unknown subnet pool, known are "+validation.Keys(s.SubnetPools))
	}
	return nil
}

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

func (c *Config) validateLoadBalancers(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(c.LoadBalancers)) {
		errs = append(errs, validation.Identifier(path.Child(key), key)...)
		errs = append(errs, c.LoadBalancers[key].Settings.Validate(path.Child(key))...)
	}
	return errs
}

// validateLoadBalancerKeys checks the list of a template or a group.
func (c *Config) validateLoadBalancerKeys(path *field.Path, keys []string) field.ErrorList {
	var errs field.ErrorList
	for n, key := range keys {
		if err := c.CheckLoadBalancer(path.Index(n), key); err != nil {
			errs = append(errs, err)
		} else if slices.Contains(keys[:n], key) {
			errs = append(errs, field.Duplicate(path.Index(n), key))
		}
	}
	return errs
}
