// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
)

// CheckTemplate returns an error for path unless name is a template.
func (c *Config) CheckTemplate(path *field.Path, name string) *field.Error {
	if name == "" {
		return field.Required(path, "must name a template: "+quoted(c.Templates))
	}
	if _, found := c.Templates[name]; !found {
		return field.Invalid(path, name, "unknown template, known are "+quoted(c.Templates))
	}
	return nil
}

// CheckInstanceType returns an error for path unless the provider has an
// instance type of that name and it has the architecture arch: an instance type
// must fit the template's (server document).
func (c *Config) CheckInstanceType(path *field.Path, name, arch string) *field.Error {
	if c.Shard.Infra.Provider != ProviderKwok || !slices.Contains(architectures, arch) {
		// That is reported where it stands, and leaves nothing to judge by.
		return nil
	}
	fitting := map[string]instance.Type{}
	for name, t := range c.Shard.Infra.Kwok.InstanceTypes {
		if t.Arch == arch {
			fitting[name] = t
		}
	}
	if _, found := fitting[name]; !found {
		return field.Invalid(path, name, fmt.Sprintf("no instance type of architecture %q, known are %s", arch, quoted(fitting)))
	}
	return nil
}

// CheckSubnetPool returns an error for path unless pool is a subnet pool.
func (s *Shard) CheckSubnetPool(path *field.Path, pool string) *field.Error {
	if _, found := s.SubnetPools[pool]; !found {
		return field.Invalid(path, pool, "unknown subnet pool, known are "+quoted(s.SubnetPools))
	}
	return nil
}

// quoted lists the keys of m for a message.
func quoted[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(m))
	for i, name := range names {
		names[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(names, ", ")
}
