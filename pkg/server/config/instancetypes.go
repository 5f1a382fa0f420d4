// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/instance"
)

// defaultInstanceTypes returns the types that a kwok shard knows without being
// told: the sizes of common families of a cloud, so that a configuration for
// one runs unchanged.
func defaultInstanceTypes() map[string]instance.Type {
	types := map[string]instance.Type{}
	for _, family := range []struct {
		name       string
		arch       string
		gibPerCore int64
	}{
		{"c7i", instance.ArchAMD64, 2},
		{"m7i", instance.ArchAMD64, 4},
		{"r7i", instance.ArchAMD64, 8},
		{"c7g", instance.ArchARM64, 2},
		{"m7g", instance.ArchARM64, 4},
		{"r7g", instance.ArchARM64, 8},
		{"t3", instance.ArchAMD64, 4},
		{"t4g", instance.ArchARM64, 4},
	} {
		for _, size := range []struct {
			name  string
			cores int64
		}{
			{"large", 2}, {"xlarge", 4}, {"2xlarge", 8}, {"4xlarge", 16},
		} {
			name := family.name + "." + size.name
			types[name] = instance.Type{
				Name:   name,
				CPU:    *resource.NewQuantity(size.cores, resource.DecimalSI),
				Memory: *resource.NewQuantity(size.cores*family.gibPerCore<<30, resource.BinarySI),
				Arch:   family.arch,
			}
		}
	}
	return types
}
