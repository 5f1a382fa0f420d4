// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Architectures that templates and instance types may have.
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
)

// architectures are all of them.
var architectures = []string{ArchAMD64, ArchARM64}

// ValidateArch reports a value that is no architecture.
func ValidateArch(path *field.Path, value string) field.ErrorList {
	if !slices.Contains(architectures, value) {
		return field.ErrorList{field.NotSupported(path, value, architectures)}
	}
	return nil
}

// InstanceType is one entry of a provider's catalogue of instance types.
type InstanceType struct {
	// Name is its key in the catalogue.
	Name   string
	CPU    resource.Quantity
	Memory resource.Quantity
	// Arch is ArchAMD64 or ArchARM64.
	Arch string
	// Quota is how many instances of the type the shard may have, pending or
	// running. Nil means no limit.
	Quota *int32
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
