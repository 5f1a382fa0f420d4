// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
)

// readLoadBalancers reads the entries, whose fields are those of the provider. An unknown
// provider is reported elsewhere.
func readLoadBalancers(o *jsonc.Object, infra Infra) map[string]provider.LoadBalancer {
	if len(o.Names()) == 0 || infra.Options == nil {
		return nil
	}
	options, ok := infra.Options.(provider.LoadBalancerOptions)
	if !ok {
		o.Report(field.Invalid(o.Path(), o.Names(), fmt.Sprintf("must not be set: provider %q has no load balancers", infra.Provider)))
		return nil
	}
	balancers := map[string]provider.LoadBalancer{}
	o.Each(func(key string, o *jsonc.Object) {
		balancers[key] = provider.LoadBalancer{Key: key, Settings: options.ReadLoadBalancer(o)}
	})
	return balancers
}

// readLoadBalancerKeys returns nil when there is no list. An empty one of a group means
// none, also if the template has some.
func readLoadBalancerKeys(o *jsonc.Object) []string {
	if !o.Has("load_balancers") {
		return nil
	}
	return append([]string{}, o.Strings("load_balancers")...)
}

func (c *Config) validateLoadBalancers(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(c.LoadBalancers)) {
		errs = append(errs, validation.Identifier(path.Child(key), key)...)
		errs = append(errs, c.LoadBalancers[key].Settings.Validate(path.Child(key))...)
	}
	return errs
}

// validateLoadBalancerKeys checks the list of a template or a group.
func (c *Config) validateLoadBalancerKeys(path *field.Path, keys []string) field.ErrorList {
	var errs field.ErrorList
	for n, key := range keys {
		if err := c.CheckLoadBalancer(path.Index(n), key); err != nil {
			errs = append(errs, err)
		} else if slices.Contains(keys[:n], key) {
			errs = append(errs, field.Duplicate(path.Index(n), key))
		}
	}
	return errs
}
