// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestTemplatesOfATenant: nobody gets the vars, files and load balancers of a template that
// other tenants have static groups of.
func TestTemplatesOfATenant(t *testing.T) {
	c := &Config{
		Templates: map[string]Template{
			"of-a":   {},
			"of-b":   {},
			"of-all": {},
			"named":  {Tenants: []string{"b"}},
			"shared": {Tenants: []string{"*"}},
		},
		Groups: map[string]map[string]Group{
			"a": {"main": {Template: "of-a"}, "other": {Template: "shared"}},
			"b": {"main": {Template: "of-b"}, "other": {Template: "named"}},
		},
	}
	for tenant, want := range map[string][]string{
		"a":       {"of-a", "of-all", "shared"},
		"b":       {"named", "of-all", "of-b", "shared"},
		"unknown": {"of-all", "shared"},
	} {
		for name := range c.Templates {
			err := c.CheckTemplateOf(field.NewPath("template"), tenant, name)
			assert.Equal(t, slices.Contains(want, name), err == nil, "tenant %s, template %s: %v", tenant, name, err)
		}
	}
	for _, name := range []string{"of-b", "no-template"} {
		err := c.CheckTemplateOf(field.NewPath("template"), "a", name)
		assert.EqualError(t, err, `template: Invalid value: "`+name+`": unknown template, known are "of-a", "of-all", "shared"`)
	}
	assert.EqualError(t, c.CheckTemplateOf(field.NewPath("template"), "a", ""),
		`template: Required value: must name a template: "of-a", "of-all", "shared"`)
}
