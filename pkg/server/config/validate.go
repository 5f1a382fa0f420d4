// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/identifier"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
)

// architectures are those that a template or an instance type may have.
var architectures = []string{instance.ArchAMD64, instance.ArchARM64}

// validate returns every rule that is broken, in the order of the file's keys.
func (c *Config) validate() field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validateIdentifier(field.NewPath("cluster", "id"), c.ClusterID)...)
	errs = append(errs, c.Shard.validate(field.NewPath("shard"))...)
	for _, name := range slices.Sorted(maps.Keys(c.Templates)) {
		errs = append(errs, c.validateTemplate(field.NewPath("templates").Child(name), name)...)
	}
	for _, tenant := range slices.Sorted(maps.Keys(c.Groups)) {
		path := field.NewPath("groups").Child(tenant)
		errs = append(errs, validateIdentifier(path, tenant)...)
		for _, name := range slices.Sorted(maps.Keys(c.Groups[tenant])) {
			errs = append(errs, validateIdentifier(path.Child(name), name)...)
			errs = append(errs, c.validateGroup(path.Child(name), c.Groups[tenant][name])...)
		}
	}
	return errs
}

func (s *Shard) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validateIdentifier(path.Child("id"), s.ID)...)
	errs = append(errs, s.Infra.validate(path.Child("infra"))...)

	bind := path.Child("bind")
	errs = append(errs, validateAddress(bind.Child("health_addr"), s.Bind.HealthAddr)...)
	errs = append(errs, validateAddress(bind.Child("operator_addr"), s.Bind.OperatorAddr)...)
	// Port 0 is any free port, so two of them differ.
	if s.Bind.HealthAddr != "" && s.Bind.HealthAddr == s.Bind.OperatorAddr && !strings.HasSuffix(s.Bind.HealthAddr, ":0") {
		errs = append(errs, field.Invalid(bind.Child("operator_addr"), s.Bind.OperatorAddr, "must differ from shard.bind.health_addr"))
	}

	tls := path.Child("tls")
	errs = append(errs, validateRequired(tls.Child("ca"), s.TLS.CA)...)
	errs = append(errs, validateRequired(tls.Child("cert"), s.TLS.Cert)...)
	errs = append(errs, validateRequired(tls.Child("key"), s.TLS.Key)...)

	errs = append(errs, s.validateSubnetPools(path.Child("subnet_pools"))...)
	for i, pool := range s.DynamicSubnetPools {
		if err := s.CheckSubnetPool(path.Child("dynamic_subnet_pools").Index(i), pool); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func (i *Infra) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validateLabelValue(path.Child("region"), i.Region)...)
	errs = append(errs, validateLabelValue(path.Child("zone"), i.Zone)...)
	if i.Provider != ProviderKwok {
		return append(errs, field.NotSupported(path.Child("provider"), i.Provider, []string{ProviderKwok}))
	}
	options := path.Child("options")
	errs = append(errs, validateRequired(options.Child("kubeconfig"), i.Kwok.Kubeconfig)...)
	for _, name := range slices.Sorted(maps.Keys(i.Kwok.InstanceTypes)) {
		path := options.Child("instance_types").Child(name)
		errs = append(errs, validateLabelValue(path, name)...)
		errs = append(errs, validateArch(path.Child("arch"), i.Kwok.InstanceTypes[name].Arch)...)
	}
	return errs
}

// validateSubnetPools: at least one pool, at least one subnet in each, and no
// subnet in two (server document).
func (s *Shard) validateSubnetPools(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.SubnetPools) == 0 {
		errs = append(errs, field.Required(path, "needs at least one subnet pool"))
	}
	poolOf := map[string]string{}
	for _, pool := range slices.Sorted(maps.Keys(s.SubnetPools)) {
		errs = append(errs, validateIdentifier(path.Child(pool), pool)...)
		subnets := s.SubnetPools[pool]
		if len(subnets) == 0 {
			errs = append(errs, field.Required(path.Child(pool), "needs at least one subnet"))
		}
		for i, subnet := range subnets {
			errs = append(errs, validateRequired(path.Child(pool).Index(i), subnet)...)
			if other, taken := poolOf[subnet]; taken && subnet != "" {
				errs = append(errs, field.Invalid(path.Child(pool).Index(i), subnet, fmt.Sprintf("is in pool %q already", other)))
			}
			poolOf[subnet] = pool
		}
	}
	return errs
}

func (c *Config) validateTemplate(path *field.Path, name string) field.ErrorList {
	template := c.Templates[name]
	var errs field.ErrorList
	errs = append(errs, validateIdentifier(path, name)...)
	if err := puidv7.ValidatePrefix(template.Kind); err != nil {
		errs = append(errs, field.Invalid(path.Child("kind"), template.Kind, "must be three lower case letters"))
	}
	errs = append(errs, validateArch(path.Child("arch"), template.Arch)...)
	if template.Size < 0 {
		errs = append(errs, field.Invalid(path.Child("size"), template.Size, "must not be negative"))
	}
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
	return errs
}

// validateGroup checks what the group says itself. What it takes from its
// template is the template's to answer for, except when both are silent.
func (c *Config) validateGroup(path *field.Path, group Group) field.ErrorList {
	var errs field.ErrorList
	if group.Size != nil && *group.Size < 0 {
		errs = append(errs, field.Invalid(path.Child("size"), *group.Size, "must not be negative"))
	}
	if group.SubnetPool != "" {
		if err := c.Shard.CheckSubnetPool(path.Child("subnet_pool"), group.SubnetPool); err != nil {
			errs = append(errs, err)
		}
	}
	if err := c.CheckTemplate(path.Child("template"), group.Template); err != nil {
		return append(errs, err)
	}
	template := c.Templates[group.Template]
	switch {
	case group.InstanceType != "":
		if err := c.CheckInstanceType(path.Child("instance_type"), group.InstanceType, template.Arch); err != nil {
			errs = append(errs, err)
		}
	case template.InstanceType == "":
		errs = append(errs, field.Required(path.Child("instance_type"), fmt.Sprintf("template %q has none", group.Template)))
	}
	if group.SubnetPool == "" && template.SubnetPool == "" {
		errs = append(errs, field.Required(path.Child("subnet_pool"), fmt.Sprintf("template %q has none", group.Template)))
	}
	return errs
}

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

func validateIdentifier(path *field.Path, value string) field.ErrorList {
	if err := identifier.Validate(value); err != nil {
		return field.ErrorList{field.Invalid(path, value, err.Error())}
	}
	return nil
}

func validateRequired(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "must not be empty")}
	}
	return nil
}

// validateLocation: regions and zones become values of Node labels.
func validateLabelValue(path *field.Path, value string) field.ErrorList {
	errs := validateRequired(path, value)
	for _, problem := range validation.IsValidLabelValue(value) {
		errs = append(errs, field.Invalid(path, value, problem))
	}
	return errs
}

func validateArch(path *field.Path, value string) field.ErrorList {
	if !slices.Contains(architectures, value) {
		return field.ErrorList{field.NotSupported(path, value, architectures)}
	}
	return nil
}

func validateAddress(path *field.Path, value string) field.ErrorList {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return field.ErrorList{field.Invalid(path, value, `must be host:port, such as "127.0.0.1:8993" or "[::]:8993"`)}
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
