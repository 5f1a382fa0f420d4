// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
)

// defaultTemplateSize is the size of a template that names none (server
// document). A size of 0 that is written down stays 0.
const defaultTemplateSize = 1

// readConfig takes the configuration apart. It reports what has the wrong type
// or name; what the values must be is for validate.
func readConfig(root *object, dir string) *Config {
	config := &Config{
		Templates: map[string]Template{},
		Groups:    map[string]map[string]Group{},
	}
	cluster := root.object("cluster")
	config.ClusterID = cluster.text("id")
	cluster.finish()

	config.Shard = readShard(root.object("shard"), dir)
	root.object("templates").each(func(name string, o *object) {
		config.Templates[name] = readTemplate(o)
	})
	root.object("groups").each(func(tenant string, groups *object) {
		config.Groups[tenant] = map[string]Group{}
		groups.each(func(name string, o *object) {
			config.Groups[tenant][name] = readGroup(o)
		})
	})
	root.finish()
	return config
}

func readShard(o *object, dir string) Shard {
	defer o.finish()
	shard := Shard{
		ID:                 o.text("id"),
		Infra:              readInfra(o.object("infra"), dir),
		SubnetPools:        map[string][]string{},
		DynamicSubnetPools: o.texts("dynamic_subnet_pools"),
	}
	bind := o.object("bind")
	shard.Bind = Bind{HealthAddr: bind.text("health_addr"), OperatorAddr: bind.text("operator_addr")}
	bind.finish()

	tls := o.object("tls")
	shard.TLS = TLS{
		CA:   resolve(dir, tls.text("ca")),
		Cert: resolve(dir, tls.text("cert")),
		Key:  resolve(dir, tls.text("key")),
	}
	tls.finish()

	pools := o.object("subnet_pools")
	for _, pool := range pools.names() {
		shard.SubnetPools[pool] = pools.texts(pool)
	}
	return shard
}

func readInfra(o *object, dir string) Infra {
	defer o.finish()
	infra := Infra{Provider: o.text("provider"), Region: o.text("region"), Zone: o.text("zone")}
	options := o.object("options")
	// The options of a provider that is not known cannot be judged.
	if infra.Provider == ProviderKwok {
		infra.Kwok = readKwok(options, dir)
	}
	return infra
}

func readKwok(o *object, dir string) Kwok {
	defer o.finish()
	kwok := Kwok{
		Kubeconfig:    resolve(dir, o.text("kubeconfig")),
		InstanceTypes: defaultInstanceTypes(),
	}
	if text := o.text("boot_delay"); text != "" {
		delay, err := time.ParseDuration(text)
		if err != nil || delay < 0 {
			*o.errs = append(*o.errs, field.Invalid(o.path.Child("boot_delay"), text,
				`must be a duration that is not negative, such as "1.5s" or "2m"`))
		}
		kwok.BootDelay = delay
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

func readTemplate(o *object) Template {
	template := Template{
		Kind:         o.text("kind"),
		Arch:         o.text("arch"),
		Size:         defaultTemplateSize,
		InstanceType: o.text("instance_type"),
		SubnetPool:   o.text("subnet_pool"),
		Vars:         o.dictionary("vars"),
	}
	if size := o.integer("size"); size != nil {
		template.Size = *size
	}
	return template
}

func readGroup(o *object) Group {
	return Group{
		Template:     o.text("template"),
		Size:         o.integer("size"),
		InstanceType: o.text("instance_type"),
		SubnetPool:   o.text("subnet_pool"),
		Vars:         o.dictionary("vars"),
	}
}

// resolve leaves an empty path empty, so that it is seen to be missing.
func resolve(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
