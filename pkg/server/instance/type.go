// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import "k8s.io/apimachinery/pkg/api/resource"

// Architectures that templates and instance types may have.
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
)

// Type is one entry of a provider's catalogue of instance types.
type Type struct {
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
