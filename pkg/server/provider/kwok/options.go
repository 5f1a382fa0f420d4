// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
)

// Name is the name of the provider in the configuration.
const Name = "kwok"

// Options configure the provider.
type Options struct {
	// Kubeconfig is the absolute path of a kubeconfig for the cluster of the Nodes.
	Kubeconfig string
	// BootDelay is the time between the request for an instance and its Node.
	BootDelay time.Duration
	// InstanceTypes are the built-in and the configured types, with their quotas.
	InstanceTypes provider.Catalogue
	// SubnetCapacity is how many instances each subnet has room for. Other subnets have no
	// limit.
	SubnetCapacity map[string]int32
	// Client replaces the client from Kubeconfig in tests.
	Client NodeClient
}

var _ provider.Options = (*Options)(nil)

// ReadOptions reads the options of the provider.
func ReadOptions(o *jsonc.Object) provider.Options {
	defer o.Finish()
	options := &Options{
		Kubeconfig:     o.String("kubeconfig"),
		BootDelay:      o.Duration("boot_delay", 0),
		InstanceTypes:  defaultInstanceTypes(),
		SubnetCapacity: readCapacity(o.Object("subnet_capacity")),
	}
	provider.ReadInstanceTypes(o.Object("instance_types"), options.InstanceTypes)
	provider.ReadQuota(o.Object("quota"), options.InstanceTypes, markets...)
	return options
}

// readCapacity returns nil if no subnet is limited.
func readCapacity(o *jsonc.Object) map[string]int32 {
	var capacity map[string]int32
	for _, subnet := range o.Names() {
		if capacity == nil {
			capacity = map[string]int32{}
		}
		if limit := o.Int32(subnet); limit != nil {
			capacity[subnet] = *limit
		}
	}
	return capacity
}

// Validate returns every rule that the options break.
func (o *Options) Validate(path *field.Path, subnets sets.Set[string]) field.ErrorList {
	errs := validation.Required(path.Child("kubeconfig"), o.Kubeconfig)
	if len(errs) == 0 {
		errs = validation.AbsolutePath(path.Child("kubeconfig"), o.Kubeconfig)
	}
	errs = append(errs, o.InstanceTypes.Validate(path.Child("instance_types"))...)
	for _, subnet := range slices.Sorted(maps.Keys(o.SubnetCapacity)) {
		path := path.Child("subnet_capacity").Child(subnet)
		if !subnets.Has(subnet) {
			errs = append(errs, field.Invalid(path, subnet, "unknown subnet, known are "+validation.Keys(subnets)))
		}
		if o.SubnetCapacity[subnet] < 0 {
			errs = append(errs, field.Invalid(path, o.SubnetCapacity[subnet], "must not be negative"))
		}
	}
	return errs
}

// Catalogue returns the instance types.
func (o *Options) Catalogue() provider.Catalogue { return o.InstanceTypes }

// ImmutableFields returns the options that need a restart to change. Instance types and
// quotas can change at any time, because each Spec contains its type.
func (o *Options) ImmutableFields(path *field.Path) []provider.ImmutableField {
	return []provider.ImmutableField{
		{Path: path.Child("kubeconfig"), Value: o.Kubeconfig},
		{Path: path.Child("boot_delay"), Value: o.BootDelay.String()},
		{Path: path.Child("subnet_capacity"), Value: fmt.Sprint(o.SubnetCapacity)},
	}
}

// NewProvider returns the provider for a shard.
func (o *Options) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	client := o.Client
	if client == nil {
		var err error
		if client, err = newClient(o.Kubeconfig); err != nil {
			return nil, err
		}
	}
	return New(Config{Shard: shard, Options: o, Client: client, CallContext: callContext})
}

// defaultInstanceTypes returns the types that need no configuration: sizes of common AWS
// families, so that a configuration for AWS works unchanged.
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
