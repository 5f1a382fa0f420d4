// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config"
)

// validateSettings checks the references of a group after a change, and that operators may
// choose what the change sets: the template is for the tenant, and the limits of the group
// allow the rest. A value that does not change is allowed: a group keeps what it had before
// the configuration changed, and an operator may repeat the reported values.
func validateSettings(c *config.Config, change Change, before, after *Group) field.ErrorList {
	var had Settings
	if before != nil {
		had = before.Settings
	}
	if before == nil || after.Template != had.Template {
		if err := c.CheckTemplateOf(configPath.Child("template"), after.Key.Tenant, after.Template); err != nil {
			return field.ErrorList{err}
		}
	}
	if problems := validateReferences(c, configPath, after); len(problems) > 0 {
		return problems
	}
	var problems field.ErrorList
	limits := c.SettingLimits(after.Key.Tenant, after.Key.Group, after.Template)
	if change.InstanceType != "" && change.InstanceType != had.InstanceType {
		problems = append(problems, config.CheckAllowed(configPath.Child("instance_type"), change.InstanceType, "instance_types", limits.InstanceTypes)...)
	}
	for i, pool := range change.SubnetPools {
		if !slices.Contains(had.SubnetPools, pool) {
			problems = append(problems, config.CheckAllowed(configPath.Child("subnets").Index(i), pool, "subnet_pools", limits.SubnetPools)...)
		}
	}
	return append(problems, ValidateVarChanges(configPath.Child("vars"), limits.Vars, had.Vars, change.Vars)...)
}

// ValidateVarChanges checks the vars that an operator adds to the vars that a group had: patterns of
// the configuration match their names, and the values are text
// (docs/server-reference.md#limits). A var that does not change is allowed.
func ValidateVarChanges(path *field.Path, allowed []string, had, vars map[string]string) field.ErrorList {
	var problems field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if value, found := had[name]; found && value == vars[name] {
			continue
		}
		problems = append(problems, config.CheckAllowed(path.Key(name), name, "vars", allowed)...)
		if at := strings.IndexFunc(vars[name], isControl); at >= 0 {
			problems = append(problems, field.Forbidden(path.Key(name),
				fmt.Sprintf("has the control character %q at byte %d: only tabs and line ends are allowed", vars[name][at], at)))
		}
	}
	return problems
}

// isControl reports whether r is a control character other than a tab and a line end. An
// escape sequence in a script could hide from a reader what the script does.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t'
}
