// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// Limits of what operators may store, so that no tenant can fill the memory of the shard
// that others use too (docs/server.md#limits).
const (
	maxGroups     = 1000
	maxVars       = 64
	maxVarKeySize = 256
	maxVarSize    = 4 << 10
)

// maxSize returns the largest size that an operator may set for a group.
func maxSize(c *config.Config, key instance.GroupKey) int32 {
	if own := c.Groups[key.Tenant][key.Group].MaxSize; own != nil {
		return *own
	}
	if c.Shard.MaxSize > 0 {
		return c.Shard.MaxSize
	}
	return config.MaxSize
}

// validateVars checks the number and the length of vars.
func validateVars(path *field.Path, vars map[string]string) field.ErrorList {
	if len(vars) > maxVars {
		return field.ErrorList{field.TooMany(path, len(vars), maxVars)}
	}
	var problems field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if len(name) > maxVarKeySize {
			problems = append(problems, field.TooLong(path, "", maxVarKeySize))
		} else if len(vars[name]) > maxVarSize {
			problems = append(problems, field.TooLong(path.Key(name), "", maxVarSize))
		}
	}
	return problems
}

// validateLimits returns an InvalidError if a change makes a group too large, or is of one
// group too many. before is what is stored of the group, nil for nothing. The caller has
// locked writeMu.
func (s *Store) validateLimits(key instance.GroupKey, before, after *stored) error {
	problems := validateVars(configPath.Child("vars"), after.Vars)
	if count := len(s.content.groups[key.Tenant]); before == nil && count >= maxGroups {
		problems = append(problems, field.Forbidden(keyPath, fmt.Sprintf("the tenant has %d groups that operators have changed, which is the limit", count)))
	}
	if len(problems) > 0 {
		return &InvalidError{Group: key, Problems: problems}
	}
	return nil
}
