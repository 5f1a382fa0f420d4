// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
)

// checkGroup is the group of the instances of all checks. Operators and configurations reject
// this name.
var checkGroup = instance.GroupKey{Tenant: provider.CheckPrefix + "tenant", Group: provider.CheckPrefix + "group"}

// userdata starts nothing. cloud-init and the node images run it as a script. Package
// provision requires that it contains the id and the nonce.
var userdata = "#!/bin/sh\n# Created by nstance-admin provider check: {{.Instance.ID}}, {{.Nonce}}.\n" +
	"echo '" + provider.BootMark("{{.Instance.ID}}") + "' >/dev/console\nexit 0\n"

// target describes the instance that a check creates.
type target struct {
	config *config.Config
	group  *groups.Group
	subnet string
	// balancers are the load balancers with which the instance is registered.
	balancers []provider.LoadBalancer
	// shard is the shard of the check.
	shard provider.Shard
}

// target returns the target that the flags select in a configuration.
func (o *options) target(c *config.Config) (*target, error) {
	name, template, err := selectTemplate(c, o.template)
	if err != nil {
		return nil, err
	}
	args, marketErr := selectMarket(c, template, o.market)
	instanceType, typeErr := selectType(c, template.Arch, o.instanceType, provider.MarketOf(c.Shard.Infra.Options, args))
	subnet, subnetErr := selectSubnet(c, template, o.subnet)
	balancers, balancersErr := selectBalancers(c, o.balancers)
	if err := errors.Join(typeErr, marketErr, subnetErr, balancersErr); err != nil {
		return nil, err
	}
	return &target{
		config: c,
		group: &groups.Group{
			Key:      checkGroup,
			Settings: groups.Settings{Template: name, InstanceType: instanceType.Name, Vars: merge(c.Defaults.Vars, template.Vars)},
			Kind:     template.Kind,
			Arch:     template.Arch,
			Args:     args,
			Type:     instanceType,
			Userdata: config.Userdata{Inline: userdata},
		},
		subnet:    subnet,
		balancers: balancers,
		shard:     provider.Shard{ClusterID: provider.CheckPrefix + c.ClusterID, ID: c.Shard.ID, Region: c.Shard.Infra.Region, Zone: c.Shard.Infra.Zone},
	}, nil
}

func selectTemplate(c *config.Config, name string) (string, config.Template, error) {
	if name == "" {
		if len(c.Templates) != 1 {
			return "", config.Template{}, fmt.Errorf("--template: must be one of %s", validation.Keys(c.Templates))
		}
		name = slices.Collect(maps.Keys(c.Templates))[0]
	}
	template, found := c.Templates[name]
	if !found {
		return "", config.Template{}, fmt.Errorf("--template: %q is unknown, known are %s", name, validation.Keys(c.Templates))
	}
	return name, template, nil
}

// selectMarket returns the arguments of a template, in a market if one is named.
func selectMarket(c *config.Config, template config.Template, market string) (map[string]any, error) {
	args, err := provider.MarketArgs(c.Shard.Infra.Options, config.MergeArgs(c.Defaults.Args, template.Args), market)
	if err != nil {
		return nil, fmt.Errorf("--market: provider %s: %w", c.Shard.Infra.Provider, err)
	}
	return args, nil
}

// selectType returns the type with a name, or else the smallest type: least processors first,
// then least memory.
func selectType(c *config.Config, arch, name, market string) (provider.InstanceType, error) {
	types := c.Shard.Infra.InstanceTypes.OfArch(arch)
	if name != "" {
		if err := c.CheckInstanceType(field.NewPath("--instance-type"), name, arch); err != nil {
			return provider.InstanceType{}, err
		}
		return types[name], nil
	}
	// A quota of zero forbids a type.
	maps.DeleteFunc(types, func(_ string, t provider.InstanceType) bool {
		quota, limited := t.MarketQuotas[market]
		return t.Quota != nil && *t.Quota == 0 || limited && quota == 0
	})
	if len(types) == 0 {
		return provider.InstanceType{}, fmt.Errorf("--instance-type: the provider has no type of architecture %s with a quota", arch)
	}
	return slices.MinFunc(slices.Collect(maps.Values(types)), func(a, b provider.InstanceType) int {
		return cmp.Or(a.CPU.Cmp(b.CPU), a.Memory.Cmp(b.Memory), strings.Compare(a.Name, b.Name))
	}), nil
}

func selectSubnet(c *config.Config, template config.Template, name string) (string, error) {
	if name == "" {
		if template.SubnetPool == "" {
			return "", errors.New("--subnet: must be given, because the template has no subnet pool")
		}
		return c.Shard.SubnetPools[template.SubnetPool][0], nil
	}
	for _, subnets := range c.Shard.SubnetPools {
		if slices.Contains(subnets, name) {
			return name, nil
		}
	}
	return "", fmt.Errorf("--subnet: %q is in no subnet pool", name)
}

func merge(layers ...map[string]string) map[string]string {
	merged := map[string]string{}
	for _, layer := range layers {
		maps.Copy(merged, layer)
	}
	return merged
}

// spec returns a request for a new instance, with arguments rendered by the server's code.
func (t *target) spec(ctx context.Context) (provider.Spec, error) {
	id, err := puidv7.New(t.group.Kind)
	if err != nil {
		return provider.Spec{}, err
	}
	record := &instance.Record{ID: id.String(), Tenant: checkGroup.Tenant, Group: checkGroup.Group, CreatedAt: time.Now().UTC()}
	return provision.New(provision.Options{
		Config:    func() *config.Config { return t.config },
		Addresses: t.config.Shard.Advertised(t.config.Shard.Bind, "localhost"),
		Nonces:    noNonces{},
	}).Spec(ctx, t.group, record, t.subnet)
}

// noNonces signs no nonces, because the agent of a check never registers.
type noNonces struct{}

// Agent returns a text in place of a nonce.
func (noNonces) Agent(registration.AgentNonce) (string, error) { return "without a nonce", nil }
