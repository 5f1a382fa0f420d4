// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// Paths of the request's fields, as clients know them.
var (
	keyPath         = field.NewPath("key")
	configPath      = field.NewPath("config")
	removeFirstPath = field.NewPath("remove_first")
	rotationPath    = field.NewPath("rotation")
	replacePath     = field.NewPath("replace")
	revisionPath    = field.NewPath("revision")
	replacesPath    = field.NewPath("replaces")
)

// ValidateKey returns an InvalidError unless tenant and group are identifiers.
func ValidateKey(key instance.GroupKey) error {
	var problems field.ErrorList
	if err := identifier.Validate(key.Tenant); err != nil {
		problems = append(problems, field.Invalid(field.NewPath("tenant"), key.Tenant, err.Error()))
	}
	if err := identifier.Validate(key.Group); err != nil {
		problems = append(problems, field.Invalid(keyPath, key.Group, err.Error()))
	}
	if len(problems) > 0 {
		return &InvalidError{Group: key, Problems: problems}
	}
	return nil
}

// validate returns an InvalidError for settings that no group may have, or else
// a RestrictedError for settings that this group may not have. before is nil
// for a new group, and after is the group after the change.
func validate(c *config.Config, change Change, before, after *Group) error {
	var problems field.ErrorList
	switch limit := c.MaxSize(after.Key.Tenant, after.Key.Group); {
	case change.Size < 0:
		problems = append(problems, field.Invalid(configPath.Child("size"), change.Size, "must not be negative"))
	case change.Size > limit && (before == nil || change.Size > before.Size):
		problems = append(problems, field.Invalid(configPath.Child("size"), change.Size, fmt.Sprintf("must be at most %d (max_size of the group or the shard)", limit)))
	case change.Size < after.MinSize:
		problems = append(problems, field.Invalid(configPath.Child("size"), change.Size, fmt.Sprintf("must be at least %d (limits.min_size of the static group)", after.MinSize)))
	}
	problems = append(problems, validateIDs(removeFirstPath, change.RemoveFirst)...)
	problems = append(problems, validateIDs(replacePath, change.Replace)...)
	problems = append(problems, change.Rotation.validate(rotationPath)...)
	problems = append(problems, validateSubnets(c, change, before, after)...)
	problems = append(problems, validateSettings(c, change, before, after)...)
	// Arguments are objects, which the protocol's map of strings cannot
	// represent.
	if len(change.Args) > 0 && !after.Static {
		problems = append(problems, field.Forbidden(configPath.Child("args"),
			fmt.Sprintf("provider %s takes none from operators, only from the server configuration", c.Shard.Infra.Provider)))
	}
	if len(problems) > 0 {
		return &InvalidError{Group: after.Key, Problems: problems}
	}
	if after.Static {
		if problems := validateStatic(change, before); len(problems) > 0 {
			return &RestrictedError{Group: after.Key, Problems: problems}
		}
	}
	return nil
}

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
	loadBalancers := had.LoadBalancers
	if after.Template != had.Template {
		loadBalancers = c.Templates[after.Template].LoadBalancers
	}
	problems = append(problems, ValidateLoadBalancers(c, configPath.Child("load_balancers"), limits.LoadBalancers, loadBalancers, change.LoadBalancers)...)
	problems = append(problems, change.Node.Validate(configPath.Child("node_settings"))...)
	problems = append(problems, validateCandidates(limits.InstanceTypes, change, had, after)...)
	problems = append(problems, validateDrainTimeout(*limits.DrainTimeout, before, change.DrainTimeoutSeconds)...)
	return append(problems, ValidateVarChanges(configPath.Child("vars"), limits.Vars, had.Vars, change.Vars)...)
}

// ValidateLoadBalancers checks the load balancers that an operator sets: the configuration has each,
// and the patterns in allowed match those that the list adds to had and those that it leaves out. An
// empty list keeps had.
func ValidateLoadBalancers(c *config.Config, path *field.Path, allowed, had, keys []string) field.ErrorList {
	if len(keys) == 0 {
		return nil
	}
	var problems field.ErrorList
	for i, key := range keys {
		forbidden := config.CheckAllowed(path.Index(i), key, "load_balancers", allowed)
		_, known := c.LoadBalancers[key]
		switch {
		case slices.Contains(keys[:i], key):
			problems = append(problems, field.Duplicate(path.Index(i), key))
		case slices.Contains(had, key):
		case len(forbidden) > 0:
			problems = append(problems, forbidden...)
		case !known:
			// The keys that there are may be those of other tenants.
			problems = append(problems, field.Invalid(path.Index(i), key, "unknown load balancer"))
		}
	}
	for _, key := range had {
		if !slices.Contains(keys, key) && len(config.CheckAllowed(path, key, "load_balancers", allowed)) > 0 {
			problems = append(problems, field.Forbidden(path, fmt.Sprintf("must contain %q: limits.load_balancers of the server's configuration does not allow to leave it out", key)))
		}
	}
	return problems
}

// validateDrainTimeout checks the drain timeout that an operator sets. before is nil for a new group.
func validateDrainTimeout(limit time.Duration, before *Group, seconds int32) field.ErrorList {
	path := configPath.Child("drain_timeout_seconds")
	switch {
	case seconds == 0 || before != nil && seconds == before.reportedDrainTimeout():
		return nil
	case seconds < 0:
		return field.ErrorList{field.Invalid(path, seconds, "must not be negative")}
	case limit == 0:
		return field.ErrorList{field.Forbidden(path, "the server's configuration does not allow to set it (limits.drain_timeout)")}
	case time.Duration(seconds)*time.Second > limit:
		return field.ErrorList{field.Invalid(path, seconds, fmt.Sprintf("must be at most %s (limits.drain_timeout of the server's configuration)", limit))}
	}
	return nil
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

// validateReferences checks the references of group. It checks the template
// first, because the other references depend on it.
func validateReferences(c *config.Config, path *field.Path, group *Group) field.ErrorList {
	if err := c.CheckTemplate(path.Child("template"), group.Template); err != nil {
		return field.ErrorList{err}
	}
	var problems field.ErrorList
	arch := c.Templates[group.Template].Arch
	if err := c.CheckInstanceType(path.Child("instance_type"), group.InstanceType, arch); err != nil {
		problems = append(problems, err)
	}
	problems = append(problems, c.CheckCandidates(path.Child("candidates"), group.Candidates, arch, group.Args)...)
	if len(group.SubnetPools) == 0 {
		problems = append(problems, field.Required(path.Child("subnets"), fmt.Sprintf("template %q has no subnet pool", group.Template)))
	}
	return problems
}

// validateStored checks a stored group. The group was valid when it was
// written, but the configuration may have changed, or the object may have been
// edited. group is the merged group.
func validateStored(c *config.Config, override *stored, group *Group) field.ErrorList {
	path := field.NewPath(group.Key.Tenant, group.Key.Group)
	if override == nil {
		return field.ErrorList{field.Required(path, "must be an object, not null")}
	}
	var problems field.ErrorList
	for _, name := range []string{group.Key.Tenant, group.Key.Group} {
		if err := identifier.Validate(name); err != nil {
			problems = append(problems, field.Invalid(path, name, err.Error()))
		}
	}
	if override.Size < 0 {
		problems = append(problems, field.Invalid(path.Child("size"), override.Size, "must not be negative"))
	}
	problems = append(problems, validateIDs(path.Child("remove_first"), override.RemoveFirst)...)
	problems = append(problems, validateIDs(path.Child("replace"), override.Replace)...)
	problems = append(problems, override.Rotation.validate(path.Child("rotation"))...)
	problems = append(problems, validateRevision(path.Child("revision"), override.Revision)...)
	if seconds := override.DrainTimeoutSeconds; seconds < 0 {
		problems = append(problems, field.Invalid(path.Child("drain_timeout_seconds"), seconds, "must not be negative"))
	}
	problems = append(problems, override.Node.Validate(path.Child("node"))...)
	problems = append(problems, candidates.Validate(path.Child("candidates"), override.Candidates)...)
	if !group.Static {
		problems = append(problems, validateStoredDynamic(c, path, override)...)
	}
	return append(problems, validateReferences(c, path, group)...)
}

// validateStoredDynamic checks the fields that only dynamic groups have.
func validateStoredDynamic(c *config.Config, path *field.Path, override *stored) field.ErrorList {
	var problems field.ErrorList
	for i, pool := range override.SubnetPools {
		if err := c.Shard.CheckSubnetPool(path.Child("subnet_pools").Index(i), pool); err != nil {
			problems = append(problems, err)
		}
	}
	if timeout := override.DrainTimeout; timeout != nil && timeout.Duration < 0 {
		problems = append(problems, field.Invalid(path.Child("drain_timeout"), timeout.Duration.String(), "must not be negative"))
	}
	return problems
}

// validateSubnets checks the pools in the change, and that a dynamic group has only pools
// that are allowed for dynamic groups, even if they come from its template. A group may keep
// pools that are no longer allowed, and a static group always keeps its own pools.
func validateSubnets(c *config.Config, change Change, before, after *Group) field.ErrorList {
	var problems field.ErrorList
	path := configPath.Child("subnets")
	for i, pool := range change.SubnetPools {
		if slices.Contains(change.SubnetPools[:i], pool) {
			problems = append(problems, field.Duplicate(path.Index(i), pool))
		} else if err := c.Shard.CheckSubnetPool(path.Index(i), pool); err != nil {
			problems = append(problems, err)
		}
	}
	allowed := c.Shard.DynamicSubnetPools
	unchanged := before != nil && slices.Equal(before.SubnetPools, after.SubnetPools)
	if len(problems) > 0 || len(allowed) == 0 || unchanged {
		return problems
	}
	for i, pool := range after.SubnetPools {
		if !slices.Contains(allowed, pool) {
			problems = append(problems, field.NotSupported(path.Index(i), pool, allowed))
		}
	}
	return problems
}

// validateStatic rejects changes of fields that only the configuration sets.
// Equal values pass, so that an operator may repeat the reported values.
// Arguments never pass, because they are not reported.
func validateStatic(change Change, group *Group) field.ErrorList {
	var problems field.ErrorList
	forbid := func(name string, value, allowed any) {
		problems = append(problems, field.Forbidden(configPath.Child(name),
			fmt.Sprintf("%q is set by the server configuration, which allows only %q", value, allowed)))
	}
	if change.Template != "" && change.Template != group.Template {
		forbid("template", change.Template, group.Template)
	}
	if len(change.SubnetPools) > 0 && !slices.Equal(change.SubnetPools, group.SubnetPools) {
		forbid("subnets", change.SubnetPools, group.SubnetPools)
	}
	if len(change.Args) > 0 {
		problems = append(problems, field.Forbidden(configPath.Child("args"), "a static group takes none"))
	}
	return problems
}

// Limits for operators, so that no tenant can fill the memory of the shard that others use
// too (docs/server-reference.md#limits).
const (
	maxGroups = 1000
	// maxGroupsSize is the maximum size of the settings of a tenant's groups in the object that
	// has the groups of all tenants, and that each change writes.
	maxGroupsSize = 1 << 20
	maxVars       = 64
	maxVarKeySize = 256
	maxVarSize    = 4 << 10
)

// ValidateVars checks the number and the length of the vars of a group or an instance.
func ValidateVars(path *field.Path, vars map[string]string) field.ErrorList {
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

// validateLimits returns an InvalidError if a change makes a group or the groups of its tenant
// too large, or creates one group too many. content is the content before the change, and next
// the changed group. The caller has locked writeMu.
func (s *Store) validateLimits(content content, key instance.GroupKey, next *stored) error {
	problems := ValidateVars(configPath.Child("vars"), next.Vars)
	problems = append(problems, next.Node.ValidateSize(configPath.Child("node_settings"))...)
	groups := content.groups[key.Tenant]
	if _, exists := groups[key.Group]; !exists && len(groups) >= maxGroups {
		problems = append(problems, field.Forbidden(keyPath, fmt.Sprintf("the tenant has %d groups that operators have changed, which is the limit", len(groups))))
	}
	before, total := 0, 0
	for name, group := range groups {
		encoded, err := s.object.encoder.group(instance.GroupKey{Tenant: key.Tenant, Group: name}, group)
		if err != nil {
			return err
		}
		if name == key.Group {
			before = encoded.settings
		} else {
			total += encoded.settings
		}
	}
	// The changed group comes last: the encoder keeps its text for the write.
	encoded, err := s.object.encoder.group(key, next)
	if err != nil {
		return err
	}
	// Groups of a tenant that had more than the limit before there was a limit can be scaled.
	if total += encoded.settings; total > maxGroupsSize && encoded.settings > before {
		problems = append(problems, field.Forbidden(configPath, fmt.Sprintf(
			"the groups of the tenant that operators have changed would have settings of %d bytes, at most %d are allowed: use fewer or shorter vars", total, maxGroupsSize)))
	}
	if len(problems) > 0 {
		return &InvalidError{Group: key, Problems: problems}
	}
	return nil
}

const (
	// maxIDs is the maximum number of ids. It equals the maximum number
	// of provider ids in a Cluster API machine pool
	// (docs/capi.md#provider-ids).
	maxIDs = 10_000
	// maxIDLength is longer than any instance id, and than the uid of any Kubernetes
	// object.
	maxIDLength = 64
)

// validateIDs limits a stored list of instances of a group. The ids need not exist in the group:
// an instance may have been deleted since the request was sent. Only the first invalid id is
// reported.
func validateIDs(path *field.Path, ids []string) field.ErrorList {
	if len(ids) > maxIDs {
		return field.ErrorList{field.TooMany(path, len(ids), maxIDs)}
	}
	seen := make(map[string]struct{}, len(ids))
	for n, id := range ids {
		if id == "" {
			return field.ErrorList{field.Required(path.Index(n), "must be the id of an instance")}
		}
		if len(id) > maxIDLength {
			return field.ErrorList{field.Invalid(path.Index(n), id[:maxIDLength]+"...", fmt.Sprintf("must have at most %d characters", maxIDLength))}
		}
		if _, twice := seen[id]; twice {
			return field.ErrorList{field.Duplicate(path.Index(n), id)}
		}
		seen[id] = struct{}{}
	}
	return nil
}
