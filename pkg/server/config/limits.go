// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/config/jsonc"
)

// MaxSize is the largest size of a group: Cluster API limits the list of the instances of a
// pool, MachinePool.spec.providerIDList
// (https://pkg.go.dev/sigs.k8s.io/cluster-api/api/core/v1beta2#MachinePoolSpec).
const MaxSize = 10000

// maxOnDemand is the largest number of on-demand instances that a tenant may have.
const maxOnDemand = 10000

// Limits bound the size that operators may set for a group.
type Limits struct {
	// MinSize is the smallest size, nil for the default: 1 if the configuration gives the group
	// instances, otherwise 0.
	MinSize *int32
	// MaxSize is the largest size, nil for the limit of the shard.
	MaxSize *int32
}

func readLimits(o *jsonc.Object) Limits {
	defer o.Finish()
	return Limits{MinSize: o.Int32("min_size"), MaxSize: o.Int32("max_size")}
}

// validateLimits checks the limits of a group. Its configured size is within them, so that the
// configuration alone never contradicts itself.
func (c *Config) validateLimits(path *field.Path, group Group) field.ErrorList {
	least, most := group.Limits.MinSize, group.Limits.MaxSize
	var errs field.ErrorList
	if most != nil {
		errs = append(errs, validateMaxSize(path.Child("max_size"), *most)...)
	}
	if least == nil {
		return errs
	}
	errs = append(errs, validateSize(path.Child("min_size"), *least)...)
	if size := c.ConfiguredSize(group); *least > size {
		errs = append(errs, field.Invalid(path.Child("min_size"), *least, fmt.Sprintf("must be at most the size of the group, %d", size)))
	}
	if limit := ptr.Deref(most, c.Shard.MaxSize); limit > 0 && *least > limit {
		errs = append(errs, field.Invalid(path.Child("min_size"), *least, fmt.Sprintf("must be at most %d (max_size of the group or the shard)", limit)))
	}
	return errs
}

// ConfiguredSize returns the size of a static group that no operator has changed.
func (c *Config) ConfiguredSize(group Group) int32 {
	return ptr.Deref(group.Size, c.Templates[group.Template].Size)
}

// MinSize returns the smallest size that a group may have: its limit, or else 1 for a static
// group that the configuration gives instances, because static groups run what the cluster
// cannot do without. It is 0 for a dynamic group.
func (c *Config) MinSize(tenant, name string) int32 {
	group, static := c.Groups[tenant][name]
	if !static {
		return 0
	}
	return ptr.Deref(group.Limits.MinSize, min(c.ConfiguredSize(group), 1))
}

// MaxSize returns the largest size that an operator may set for a group.
func (c *Config) MaxSize(tenant, name string) int32 {
	if own := c.Groups[tenant][name].Limits.MaxSize; own != nil {
		return *own
	}
	if c.Shard.MaxSize > 0 {
		return c.Shard.MaxSize
	}
	return MaxSize
}

// MaxOnDemand returns the largest number of on-demand instances that each tenant may have.
func (c *Config) MaxOnDemand() int {
	return int(ptr.Deref(c.Shard.MaxOnDemand, maxOnDemand))
}

func validateMaxSize(path *field.Path, size int32) field.ErrorList {
	if size < 1 || size > MaxSize {
		return field.ErrorList{field.Invalid(path, size, fmt.Sprintf("must be from 1 to %d", MaxSize))}
	}
	return nil
}

// validateSize checks a configured size.
func validateSize(path *field.Path, size int32) field.ErrorList {
	if size < 0 {
		return field.ErrorList{field.Invalid(path, size, "must not be negative")}
	}
	if size > MaxSize {
		return field.ErrorList{field.Invalid(path, size, fmt.Sprintf("must be at most %d", MaxSize))}
	}
	return nil
}
