// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
)

// CheckTemplate returns an error for path unless name is a template.
func (c *Config) CheckTemplate(path *field.Path, name string) *field.Error {
	if name == "" {
		return field.Required(path, "must name a template: "+validation.Keys(c.Templates))
	}
	if _, found := c.Templates[name]; !found {
		return field.Invalid(path, name, "unknown template, known are "+validation.Keys(c.Templates))
	}
	return nil
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

// CheckLoadBalancer returns an error for path unless key is that of a load balancer.
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
