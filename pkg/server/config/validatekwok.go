// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// argLabels and argAnnotations are the arguments of the kwok provider: objects
// of strings that become labels and annotations of the Nodes.
const (
	argLabels      = "labels"
	argAnnotations = "annotations"
)

// ownDomain is the prefix of the labels and annotations by which the server
// knows its Nodes.
const ownDomain = "nstance.dev/"

func (s *Shard) validateInfra(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validateLabelValue(path.Child("region"), s.Infra.Region)...)
	errs = append(errs, validateLabelValue(path.Child("zone"), s.Infra.Zone)...)
	if s.Infra.Provider != ProviderKwok {
		return append(errs, field.NotSupported(path.Child("provider"), s.Infra.Provider, []string{ProviderKwok}))
	}
	return append(errs, s.validateKwok(path.Child("options"))...)
}

func (s *Shard) validateKwok(path *field.Path) field.ErrorList {
	kwok := s.Infra.Kwok
	errs := validateRequired(path.Child("kubeconfig"), kwok.Kubeconfig)
	if len(errs) == 0 {
		errs = validateFile(path.Child("kubeconfig"), kwok.Kubeconfig)
	}
	for _, name := range slices.Sorted(maps.Keys(kwok.InstanceTypes)) {
		path := path.Child("instance_types").Child(name)
		errs = append(errs, validateLabelValue(path, name)...)
		errs = append(errs, validateArch(path.Child("arch"), kwok.InstanceTypes[name].Arch)...)
	}
	subnets := map[string]bool{}
	for _, pool := range s.SubnetPools {
		for _, subnet := range pool {
			subnets[subnet] = true
		}
	}
	for _, subnet := range slices.Sorted(maps.Keys(kwok.SubnetCapacity)) {
		path := path.Child("subnet_capacity").Child(subnet)
		if !subnets[subnet] {
			errs = append(errs, field.Invalid(path, subnet, "unknown subnet, known are "+quoted(subnets)))
		}
		if kwok.SubnetCapacity[subnet] < 0 {
			errs = append(errs, field.Invalid(path, kwok.SubnetCapacity[subnet], "must not be negative"))
		}
	}
	return errs
}

// validateKwokArgs checks what can be known before the values are rendered.
func validateKwokArgs(path *field.Path, args map[string]any) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(args)) {
		path := path.Child(name)
		if name != argLabels && name != argAnnotations {
			errs = append(errs, field.NotSupported(path, name, []string{argAnnotations, argLabels}))
			continue
		}
		members, ok := args[name].(map[string]any)
		if !ok {
			errs = append(errs, field.TypeInvalid(path, args[name], "must be an object of strings"))
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(members)) {
			errs = append(errs, validateNodeMetadata(path.Child(key), name, key, members[key])...)
		}
	}
	return errs
}

// validateNodeMetadata checks one label or annotation of a Node.
func validateNodeMetadata(path *field.Path, arg, key string, value any) field.ErrorList {
	var errs field.ErrorList
	qualified := key
	if arg == argAnnotations {
		// As the API server does it.
		qualified = strings.ToLower(key)
	}
	for _, problem := range validation.IsQualifiedName(qualified) {
		errs = append(errs, field.Invalid(path, key, problem))
	}
	if strings.HasPrefix(key, ownDomain) {
		errs = append(errs, field.Forbidden(path, ownDomain+" is the server's own"))
	}
	text, ok := value.(string)
	if !ok {
		return append(errs, field.TypeInvalid(path, value, "must be a string"))
	}
	// What has to be rendered is not known yet.
	if arg == argLabels && !strings.Contains(text, "{{") {
		for _, problem := range validation.IsValidLabelValue(text) {
			errs = append(errs, field.Invalid(path, text, problem))
		}
	}
	return errs
}
