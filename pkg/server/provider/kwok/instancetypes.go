// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/provider"
)

// defaultInstanceTypes returns the types that need no configuration: the sizes of
// common families of a cloud, so that a configuration for that cloud works
// unchanged.
func defaultInstanceTypes() provider.Catalogue {
	types := provider.Catalogue{}
	for _, family := range []struct {
		name       string
		arch       string
		gibPerCore int64
	}{
		{"c7i", provider.ArchAMD64, 2},
		{"m7i", provider.ArchAMD64, 4},
		{"r7i", provider.ArchAMD64, 8},
		{"c7g", provider.ArchARM64, 2},
		{"m7g", provider.ArchARM64, 4},
		{"r7g", provider.ArchARM64, 8},
		{"t3", provider.ArchAMD64, 4},
		{"t4g", provider.ArchARM64, 4},
	} {
		for _, size := range []struct {
			name  string
			cores int64
		}{
			{"large", 2}, {"xlarge", 4}, {"2xlarge", 8}, {"4xlarge", 16},
		} {
			name := family.name + "." + size.name
			types[name] = provider.InstanceType{
				Name:   name,
				CPU:    *resource.NewQuantity(size.cores, resource.DecimalSI),
				Memory: *resource.NewQuantity(size.cores*family.gibPerCore<<30, resource.BinarySI),
				Arch:   family.arch,
			}
		}
	}
	return types
}
