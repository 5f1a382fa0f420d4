// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
)

// Architectures of templates and instance types.
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
)

// architectures lists the supported CPU architectures.
var architectures = []string{ArchAMD64, ArchARM64}

// ValidateArch reports a value that is not a supported architecture.
func ValidateArch(path *field.Path, value string) field.ErrorList {
	if !slices.Contains(architectures, value) {
		return field.ErrorList{field.NotSupported(path, value, architectures)}
	}
	return nil
}

// InstanceType is an entry of a provider's catalogue of instance types.
type InstanceType struct {
	// Name is the key of the entry.
	Name   string
	CPU    resource.Quantity
	Memory resource.Quantity
	// Arch is ArchAMD64 or ArchARM64.
	Arch string
	// Quota is how many pending or running instances of the type the shard may have. Nil
	// means no limit.
	Quota *int32
	// MarketQuotas are the same by market, of instances in this market. A market that is missing
	// has no limit of its own.
	MarketQuotas map[string]int32
}

// Catalogue has the instance types of a provider by name.
type Catalogue map[string]InstanceType

// OfArch returns the types of one architecture.
func (c Catalogue) OfArch(arch string) Catalogue {
	types := Catalogue{}
	for name, t := range c {
		if t.Arch == arch {
			types[name] = t
		}
	}
	return types
}

// ReadInstanceTypes adds the types of the option instance_types to a catalogue.
func ReadInstanceTypes(o *jsonc.Object, types Catalogue) {
	o.Each(func(name string, o *jsonc.Object) {
		types[name] = InstanceType{
			Name:   name,
			CPU:    readQuantity(o, "cpu"),
			Memory: readQuantity(o, "memory"),
			Arch:   o.String("arch"),
		}
	})
}

func readQuantity(o *jsonc.Object, name string) resource.Quantity {
	text := o.String(name)
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() <= 0 {
		o.Report(field.Invalid(o.Child(name), text, `must be a quantity greater than zero, such as "2" or "8Gi"`))
	}
	return quantity
}

// ReadQuota adds the quotas of the option quota to the types that they limit. A key is the name of a
// type, or TYPE/MARKET for one of these markets. The names of types have no slash.
func ReadQuota(o *jsonc.Object, types Catalogue, markets ...string) {
	for _, name := range o.Names() {
		quota := o.Int32(name)
		typeName, market, ofMarket := strings.Cut(name, "/")
		limited, known := types[typeName]
		switch {
		case !known, ofMarket && len(markets) == 0:
			o.Report(field.Invalid(o.Child(name), name, "unknown instance type, known are "+validation.Keys(types)))
		case ofMarket && !slices.Contains(markets, market):
			o.Report(field.NotSupported(o.Child(name), market, markets))
		case quota != nil && *quota < 0:
			o.Report(field.Invalid(o.Child(name), *quota, "must not be negative"))
		case ofMarket && quota != nil:
			if limited.MarketQuotas == nil {
				limited.MarketQuotas = map[string]int32{}
			}
			limited.MarketQuotas[market] = *quota
			types[typeName] = limited
		case !ofMarket:
			limited.Quota = quota
			types[typeName] = limited
		}
	}
}

// Validate returns every rule that the types at path break.
func (c Catalogue) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(c)) {
		path := path.Child(name)
		errs = append(errs, validation.LabelValue(path, name)...)
		errs = append(errs, ValidateArch(path.Child("arch"), c[name].Arch)...)
	}
	return errs
}

// ValidateAMD64 reports a type of another architecture, for providers without ARM hosts.
func ValidateAMD64(path *field.Path, t InstanceType) field.ErrorList {
	if t.Arch == ArchARM64 {
		return field.ErrorList{field.NotSupported(path.Child("arch"), t.Arch, []string{ArchAMD64})}
	}
	return nil
}
