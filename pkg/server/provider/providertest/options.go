// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package providertest has the conformance suite that every provider must pass, and
// a fake provider for tests that read configurations.
package providertest

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
)

// Name is the name of the provider that Providers returns.
const Name = "fake"

// Providers returns a registry with one provider, for tests of the configuration. The
// provider has the mandatory and immutable option endpoint, the argument labels, which is an
// object, and the given instance types.
func Providers(types ...provider.InstanceType) provider.Registry {
	catalogue := provider.Catalogue{}
	for _, t := range types {
		catalogue[t.Name] = t
	}
	return provider.Registry{Name: func(o *jsonc.Object) provider.Options {
		defer o.Finish()
		return &Options{Endpoint: o.String("endpoint"), InstanceTypes: catalogue}
	}}
}

// Options are the options of the fake provider.
type Options struct {
	Endpoint      string
	InstanceTypes provider.Catalogue
}

// Validate requires an endpoint.
func (o *Options) Validate(path *field.Path, _ sets.Set[string]) field.ErrorList {
	return validation.Required(path.Child("endpoint"), o.Endpoint)
}

// ValidateArgs requires that labels, if any, are an object.
func (o *Options) ValidateArgs(path *field.Path, args map[string]any) field.ErrorList {
	if labels, found := args["labels"]; found {
		if _, ok := labels.(map[string]any); !ok {
			return field.ErrorList{field.TypeInvalid(path.Child("labels"), labels, "must be an object")}
		}
	}
	return nil
}

// Catalogue returns the instance types.
func (o *Options) Catalogue() provider.Catalogue { return o.InstanceTypes }

// ImmutableFields returns the endpoint.
func (o *Options) ImmutableFields(path *field.Path) []provider.ImmutableField {
	return []provider.ImmutableField{{Path: path.Child("endpoint"), Value: o.Endpoint}}
}

// NewProvider fails: the provider exists in configurations only.
func (*Options) NewProvider(provider.Shard, provider.CallContextFunc) (provider.Provider, error) {
	return nil, errors.New("the fake provider has no instances")
}

// ReadOptions reads options from a text. It returns them with all errors in a shard that has
// subnets.
func ReadOptions[O provider.Options](t *testing.T, read func(*jsonc.Object) provider.Options, text string, subnets ...string) (O, []string) {
	t.Helper()
	var errs field.ErrorList
	object, err := jsonc.Parse([]byte(text), &errs)
	require.NoError(t, err)
	options := read(object).(O)
	errs = append(errs, options.Validate(field.NewPath("options"), sets.New(subnets...))...)
	return options, Messages(errs)
}

// Messages returns the texts of errors.
func Messages(errs field.ErrorList) []string {
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return texts
}

// Object returns an object in JSON with members whose values are JSON.
func Object(members map[string]string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		texts = append(texts, `"`+name+`": `+members[name])
	}
	return "{" + strings.Join(texts, ",") + "}"
}
