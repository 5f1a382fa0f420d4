// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// CheckReplacement returns an error for everything in which next differs from c
// and that a server cannot change while it runs: who it is, where its instances
// are, and how it is reached.
func (c *Config) CheckReplacement(next *Config) field.ErrorList {
	shard := field.NewPath("shard")
	infra, bind, tls := shard.Child("infra"), shard.Child("bind"), shard.Child("tls")
	options := infra.Child("options")
	var errs field.ErrorList
	for _, fixed := range []struct {
		path         *field.Path
		before, next string
	}{
		{field.NewPath("cluster", "id"), c.ClusterID, next.ClusterID},
		{shard.Child("id"), c.Shard.ID, next.Shard.ID},
		{infra.Child("provider"), c.Shard.Infra.Provider, next.Shard.Infra.Provider},
		{infra.Child("region"), c.Shard.Infra.Region, next.Shard.Infra.Region},
		{infra.Child("zone"), c.Shard.Infra.Zone, next.Shard.Infra.Zone},
		{options.Child("kubeconfig"), c.Shard.Infra.Kwok.Kubeconfig, next.Shard.Infra.Kwok.Kubeconfig},
		{options.Child("boot_delay"), c.Shard.Infra.Kwok.BootDelay.String(), next.Shard.Infra.Kwok.BootDelay.String()},
		{bind.Child("health_addr"), c.Shard.Bind.HealthAddr, next.Shard.Bind.HealthAddr},
		{bind.Child("operator_addr"), c.Shard.Bind.OperatorAddr, next.Shard.Bind.OperatorAddr},
		{tls.Child("ca"), c.Shard.TLS.CA, next.Shard.TLS.CA},
		{tls.Child("cert"), c.Shard.TLS.Cert, next.Shard.TLS.Cert},
		{tls.Child("key"), c.Shard.TLS.Key, next.Shard.TLS.Key},
	} {
		if fixed.before != fixed.next {
			errs = append(errs, field.Invalid(fixed.path, fixed.next, fmt.Sprintf("needs a restart of the server, which runs with %q", fixed.before)))
		}
	}
	return errs
}
