// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
)

func readKwok(o *object) Kwok {
	defer o.finish()
	kwok := Kwok{
		Kubeconfig:     o.text("kubeconfig"),
		BootDelay:      o.duration("boot_delay", 0),
		InstanceTypes:  defaultInstanceTypes(),
		SubnetCapacity: readCapacity(o.object("subnet_capacity")),
	}
	o.object("instance_types").each(func(name string, o *object) {
		kwok.InstanceTypes[name] = instance.Type{
			Name:   name,
			CPU:    readQuantity(o, "cpu"),
			Memory: readQuantity(o, "memory"),
			Arch:   o.text("arch"),
		}
	})
	readQuota(o.object("quota"), kwok.InstanceTypes)
	return kwok
}

// readCapacity returns nil when no subnet is limited.
func readCapacity(o *object) map[string]int32 {
	if len(o.members) == 0 {
		return nil
	}
	capacity := map[string]int32{}
	for _, subnet := range o.names() {
		if limit := o.integer(subnet); limit != nil {
			capacity[subnet] = *limit
		}
	}
	return capacity
}

// readQuota adds the quotas to the types that they limit.
func readQuota(o *object, types map[string]instance.Type) {
	for _, name := range o.names() {
		quota := o.integer(name)
		limited, known := types[name]
		switch {
		case !known:
			*o.errs = append(*o.errs, field.Invalid(o.path.Child(name), name, "unknown instance type, known are "+quoted(types)))
		case quota != nil && *quota < 0:
			*o.errs = append(*o.errs, field.Invalid(o.path.Child(name), *quota, "must not be negative"))
		default:
			limited.Quota = quota
			types[name] = limited
		}
	}
}

func readQuantity(o *object, name string) resource.Quantity {
	text := o.text(name)
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() <= 0 {
		*o.errs = append(*o.errs, field.Invalid(o.path.Child(name), text,
			`must be a quantity greater than zero, such as "2" or "8Gi"`))
	}
	return quantity
}
