// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/validation"
)

// allTenants is the list of tenants of a template that everybody may use.
const allTenants = "*"

// validateTenants checks the tenants of a template. A missing list is the default, an empty
// list would be a template for nobody.
func validateTenants(path *field.Path, tenants []string) field.ErrorList {
	if tenants != nil && len(tenants) == 0 {
		return field.ErrorList{field.Required(path, "must name a tenant")}
	}
	var errs field.ErrorList
	for i, tenant := range tenants {
		if tenant == allTenants && len(tenants) == 1 {
			return nil
		}
		errs = append(errs, validation.Identifier(path.Index(i), tenant)...)
		if slices.Contains(tenants[:i], tenant) {
			errs = append(errs, field.Duplicate(path.Index(i), tenant))
		}
	}
	return errs
}

// templatesOf returns the templates that a tenant may use. A template without tenants is for
// the tenants with a static group of the template, and if there is no such group, for all
// tenants (docs/server-reference.md#configuration).
func (c *Config) templatesOf(tenant string) map[string]Template {
	used, own := map[string]bool{}, map[string]bool{}
	for owner, groups := range c.Groups {
		for _, group := range groups {
			used[group.Template] = true
			own[group.Template] = own[group.Template] || owner == tenant
		}
	}
	templates := maps.Clone(c.Templates)
	maps.DeleteFunc(templates, func(name string, template Template) bool {
		if template.Tenants != nil {
			return !template.isFor(tenant)
		}
		return used[name] && !own[name]
	})
	return templates
}

// isFor reports whether the list of tenants of a template has a tenant.
func (t Template) isFor(tenant string) bool {
	return slices.Contains(t.Tenants, tenant) || slices.Contains(t.Tenants, allTenants)
}

// CheckTemplateOf returns an error for path unless name is a template that the tenant may use.
// The error is the same for a template of other tenants and for no template: a tenant does not
// learn the names of templates of others.
func (c *Config) CheckTemplateOf(path *field.Path, tenant, name string) *field.Error {
	return checkTemplate(path, name, c.templatesOf(tenant))
}

// CheckTemplate returns an error for path unless name is a template of any tenant.
func (c *Config) CheckTemplate(path *field.Path, name string) *field.Error {
	return checkTemplate(path, name, c.Templates)
}

func checkTemplate(path *field.Path, name string, templates map[string]Template) *field.Error {
	if name == "" {
		return field.Required(path, "must name a template: "+validation.Keys(templates))
	}
	if _, found := templates[name]; !found {
		return field.Invalid(path, name, "unknown template, known are "+validation.Keys(templates))
	}
	return nil
}
