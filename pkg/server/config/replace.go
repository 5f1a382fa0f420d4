// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// fixed is a value that a server has for as long as it runs.
type fixed struct {
	path  *field.Path
	value string
}

// CheckReplacement returns an error for everything in which next differs from c
// and that a server cannot change while it runs: who it is, who else may lead,
// where its instances and its keys are, and how it is reached.
func (c *Config) CheckReplacement(next *Config) field.ErrorList {
	var errs field.ErrorList
	before := c.fixed()
	for i, after := range next.fixed() {
		if before := before[i].value; before != after.value {
			errs = append(errs, field.Invalid(after.path, after.value, fmt.Sprintf("needs a restart of the server, which runs with %q", before)))
		}
	}
	return errs
}

// fixed returns as many values for any configuration, in the same order.
func (c *Config) fixed() []fixed {
	cluster, shard := field.NewPath("cluster"), field.NewPath("shard")
	secrets, infra := cluster.Child("secrets"), shard.Child("infra")
	options := infra.Child("options")
	kwok := c.Shard.Infra.Kwok
	values := []fixed{
		{cluster.Child("id"), c.ClusterID},
		{secrets.Child("encryption_key"), c.Secrets.EncryptionKey.String()},
		{secrets.Child("old_encryption_keys"), fmt.Sprint(c.Secrets.OldEncryptionKeys)},
		{shard.Child("id"), c.Shard.ID},
		{infra.Child("provider"), c.Shard.Infra.Provider},
		{infra.Child("region"), c.Shard.Infra.Region},
		{infra.Child("zone"), c.Shard.Infra.Zone},
		{options.Child("kubeconfig"), kwok.Kubeconfig},
		{options.Child("boot_delay"), kwok.BootDelay.String()},
		{options.Child("subnet_capacity"), fmt.Sprint(kwok.SubnetCapacity)},
	}
	values = append(values, c.ClusterElection.fixed(cluster.Child("leader_election"))...)
	values = append(values, c.Shard.Election.fixed(shard.Child("leader_election"))...)
	values = append(values, c.Shard.Bind.fixed(shard.Child("bind"))...)
	return append(values, c.Shard.Advertise.fixed(shard.Child("advertise"))...)
}

func (e Election) fixed(path *field.Path) []fixed {
	return []fixed{
		{path.Child("enabled"), fmt.Sprint(e.Enabled)},
		{path.Child("interval"), e.Interval.String()},
		{path.Child("timeout"), e.Timeout.String()},
	}
}

func (a Addresses) fixed(path *field.Path) []fixed {
	var values []fixed
	for _, l := range a.listeners(path) {
		values = append(values, fixed{l.path, l.address})
	}
	return values
}

// String says where the key is.
func (k KeySource) String() string {
	if k.File != "" {
		return "file " + k.File
	}
	return "env " + k.Env
}
