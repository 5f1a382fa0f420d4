// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"cmp"
	"fmt"
	patterns "path"
	"strings"
	"time"

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

const (
	// maxCalls is how many calls the operators of a tenant may make in a second without a limit of the
	// configuration. A change of all groups of a shard, and a Pod for each on-demand instance, are no
	// more than a burst (docs/server-reference.md#limits).
	maxCalls = 1000
	// mostCalls is the largest limit of the configuration.
	mostCalls = 1_000_000
)

// OnDemandPeriod is the period of Shard.MaxOnDemandPerHour.
const OnDemandPeriod = time.Hour

// dynamicDrainTimeout is the longest drain timeout that operators may set for a dynamic group without
// a limit.
const dynamicDrainTimeout = 24 * time.Hour

// Limits bound what operators may set for a static group.
type Limits struct {
	// MinSize is the smallest size, nil for the default: 1 if the configuration gives the group
	// instances, otherwise 0.
	MinSize *int32
	// MaxSize is the largest size, nil for the limit of the shard.
	MaxSize *int32
	SettingLimits
}

// SettingLimits bound the settings that operators may choose, with patterns of path.Match
// (https://pkg.go.dev/path#Match). A list that is nil is missing: the group has the list of its
// template, or else the default. An empty list allows nothing.
type SettingLimits struct {
	// Vars match the names of vars. A static group without the list allows none, because vars
	// are part of what its instances run. A dynamic group allows all.
	Vars []string
	// InstanceTypes match the types. Groups without the list allow all.
	InstanceTypes []string
	// SubnetPools match the subnet pools. Groups without the list allow all. The subnet pools
	// of a static group cannot be changed in any case.
	SubnetPools []string
	// LoadBalancers match the keys of load balancers. Groups without the list allow none.
	LoadBalancers []string
	// DrainTimeout is the longest drain timeout, nil if it is missing. Operators may set no drain
	// timeout if it is 0, which is the default of a static group.
	DrainTimeout *time.Duration
	// OnDemand is whether operators may create on-demand instances in the group. The default
	// is false for a static group: its instances are what the cluster cannot do without, such as
	// its control plane. It is true for a dynamic group.
	OnDemand *bool
}

func readLimits(o *jsonc.Object) Limits {
	defer o.Finish()
	return Limits{MinSize: o.Int32("min_size"), MaxSize: o.Int32("max_size"), SettingLimits: readSettingLimits(o)}
}

// readTemplateLimits reads the limits of a template: sizes belong to groups.
func readTemplateLimits(o *jsonc.Object) SettingLimits {
	defer o.Finish()
	return readSettingLimits(o)
}

func readSettingLimits(o *jsonc.Object) SettingLimits {
	limits := SettingLimits{
		Vars: o.Strings("vars"), InstanceTypes: o.Strings("instance_types"), SubnetPools: o.Strings("subnet_pools"), LoadBalancers: o.Strings("load_balancers"),
		DrainTimeout: o.OptionalDuration("drain_timeout"),
	}
	if o.Has("on_demand") {
		limits.OnDemand = ptr.To(o.Bool("on_demand", false))
	}
	return limits
}

// validate checks the patterns.
func (l SettingLimits) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		name     string
		patterns []string
	}{{"vars", l.Vars}, {"instance_types", l.InstanceTypes}, {"subnet_pools", l.SubnetPools}, {"load_balancers", l.LoadBalancers}} {
		for i, pattern := range list.patterns {
			if _, err := patterns.Match(pattern, ""); err != nil {
				errs = append(errs, field.Invalid(path.Child(list.name).Index(i), pattern, `must be a name or a pattern, such as "team-*"`))
			}
		}
	}
	return errs
}

// everything matches all names of vars, types and pools: none has a slash.
var everything = []string{"*"}

// SettingLimits returns the limits of a group with a template, in which no field is nil.
func (c *Config) SettingLimits(tenant, name, template string) SettingLimits {
	group, static := c.Groups[tenant][name]
	layers := []SettingLimits{group.Limits.SettingLimits, c.Templates[template].Limits, {
		Vars: everything, InstanceTypes: everything, SubnetPools: everything, LoadBalancers: []string{}, DrainTimeout: ptr.To(dynamicDrainTimeout), OnDemand: ptr.To(!static),
	}}
	if static {
		layers[2].Vars, layers[2].DrainTimeout = []string{}, new(time.Duration(0))
	}
	var limits SettingLimits
	for _, layer := range layers {
		limits.Vars = orList(limits.Vars, layer.Vars)
		limits.InstanceTypes = orList(limits.InstanceTypes, layer.InstanceTypes)
		limits.SubnetPools = orList(limits.SubnetPools, layer.SubnetPools)
		limits.LoadBalancers = orList(limits.LoadBalancers, layer.LoadBalancers)
		limits.DrainTimeout = cmp.Or(limits.DrainTimeout, layer.DrainTimeout)
		limits.OnDemand = cmp.Or(limits.OnDemand, layer.OnDemand)
	}
	return limits
}

// orList returns list, or other if list is missing.
func orList(list, other []string) []string {
	if list == nil {
		return other
	}
	return list
}

// CheckAllowed returns an error for path unless a pattern of a list of SettingLimits matches name. limit is the key of the list.
func CheckAllowed(path *field.Path, name, limit string, list []string) field.ErrorList {
	for _, pattern := range list {
		if allowed, _ := patterns.Match(pattern, name); allowed {
			return nil
		}
	}
	allowed := "nothing"
	if len(list) > 0 {
		allowed = strings.Join(list, ", ")
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf("%q is not allowed: the server's configuration allows %s (limits.%s)", name, allowed, limit))}
}

// validateLimits checks the limits of a group. Its configured size is within them, so that the
// configuration alone never contradicts itself.
func (c *Config) validateLimits(path *field.Path, group Group) field.ErrorList {
	least, most := group.Limits.MinSize, group.Limits.MaxSize
	errs := group.Limits.validate(path)
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

// MaxOnDemandPerHour returns the largest number of on-demand instances that each tenant may create
// in OnDemandPeriod, and whether there is such a limit.
func (c *Config) MaxOnDemandPerHour() (limit int, limited bool) {
	return int(ptr.Deref(c.Shard.MaxOnDemandPerHour, 0)), c.Shard.MaxOnDemandPerHour != nil
}

func validateMaxOnDemand(path *field.Path, most *int32) field.ErrorList {
	if most != nil && (*most < 0 || *most > maxOnDemand) {
		return field.ErrorList{field.Invalid(path, *most, fmt.Sprintf("must be from 0 to %d", maxOnDemand))}
	}
	return nil
}

// MaxCallsPerSecond returns how many calls the operators of each tenant may make in a second in the
// long run.
func (c *Config) MaxCallsPerSecond() int {
	return int(ptr.Deref(c.Shard.MaxCallsPerSecond, maxCalls))
}

func validateMaxCalls(path *field.Path, calls *int32) field.ErrorList {
	if calls != nil && (*calls < 1 || *calls > mostCalls) {
		return field.ErrorList{field.Invalid(path, *calls, fmt.Sprintf("must be from 1 to %d", mostCalls))}
	}
	return nil
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
