// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// Reconfigure replaces the configuration for all groups at once. The error
// wraps a *config.InvalidError that lists every problem, or is an error of the
// storage; then nothing has changed.
//
// A group that next names becomes static. Its stored settings remain as an
// operator's changes to it. A static group that next no longer names becomes a
// dynamic group with the same settings: editing the configuration never
// terminates instances, and deleting the group is up to the operator.
func (s *Store) Reconfigure(ctx context.Context, next *config.Config) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	content := s.content
	for key, group := range s.groups {
		if _, named := next.Groups[key.Tenant][key.Group]; group.Static && !named {
			content = content.with(key, &stored{WhenDropped: asDynamic(s.config, group)})
		}
	}
	return s.apply(ctx, next, content, s.config.CheckReplacement(next))
}

// apply activates next together with content, unless there are problems. The
// caller has locked writeMu.
func (s *Store) apply(ctx context.Context, next *config.Config, content content, problems field.ErrorList) error {
	content, groups, dropped, err := content.mergeValid(next, s.object.key, problems)
	if err != nil {
		return err
	}
	content = content.updateWhenDropped(next, groups)
	for key := range groups {
		if content.marks.get(key).isDeleted() {
			// The configuration names a group that was deleted before.
			content.marks = content.marks.with(key, noMark)
		}
	}
	if s.deferred {
		s.content = content
	} else if !reflect.DeepEqual(content, s.content) {
		if err := s.object.write(ctx, content); err != nil {
			return fmt.Errorf("store the groups: %w", err)
		}
		s.content = content
	}
	logger := klog.FromContext(ctx)
	for _, key := range dropped {
		logger.Info("Converted a group that the configuration no longer names to a dynamic one", "tenant", key.Tenant, "group", key.Group)
	}
	before := s.setGroups(next, groups)
	for _, key := range slices.SortedFunc(maps.Keys(groups), instance.GroupKey.Compare) {
		s.logChange(klog.NewContext(ctx, klog.LoggerWithValues(logger, "tenant", key.Tenant)),
			audit.Request{Writer: configurationWriter}, before[key], groups[key])
	}
	return nil
}

// setGroups puts a configuration and its groups in force, and returns the previous groups,
// nil when the Store is being opened.
func (s *Store) setGroups(next *config.Config, groups map[instance.GroupKey]*Group) (before map[instance.GroupKey]*Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.groups
	for key, group := range groups {
		if was := before[key]; was != nil {
			group.Causes = was.Causes.after(audit.Request{Writer: configurationWriter}, was, group)
		}
	}
	s.config, s.groups, s.marks = next, groups, s.content.marks
	return before
}

// mergeValid returns the content and the groups with next in force, and the groups that
// become dynamic. The error wraps a *config.InvalidError if there are problems, or groups
// that are not valid with next. key is the key of the object.
func (c content) mergeValid(next *config.Config, key string, problems field.ErrorList) (
	converted content, groups map[instance.GroupKey]*Group, dropped []instance.GroupKey, err error,
) {
	converted, dropped = c.convertDropped(next)
	groups, invalid, err := mergeAll(next, converted)
	if err != nil {
		return c, nil, nil, err
	}
	mistakes := toErrors(problems)
	for _, mistake := range invalid {
		tenant, _, _ := strings.Cut(mistake.Field, ".")
		mistakes = append(mistakes, &config.TenantMistake{Tenant: tenant, Mistake: fmt.Errorf("dynamic group in %s: %w", key, mistake)})
	}
	if len(mistakes) > 0 {
		return c, nil, nil, &config.InvalidError{Mistakes: errors.Join(mistakes...)}
	}
	return converted, groups, dropped, nil
}

// keepDropped returns c with the static groups of accepted that next does not name, converted
// to dynamic groups unless c already has stored settings for them. accepted may be nil.
func (c content) keepDropped(accepted, next *config.Config) (content, error) {
	if accepted == nil {
		return c, nil
	}
	kept := c
	for tenant, configured := range accepted.Groups {
		for name := range configured {
			key := instance.GroupKey{Tenant: tenant, Group: name}
			if _, named := next.Groups[tenant][name]; named || c.get(key) != nil || c.marks.get(key).isDeleted() {
				continue
			}
			group, err := merge(accepted, key, nil)
			if err != nil {
				return c, err
			}
			kept = kept.with(key, asDynamic(accepted, group))
		}
	}
	return kept, nil
}

// mergeAll returns all configured and stored groups, and the problems of the stored groups.
func mergeAll(c *config.Config, content content) (map[instance.GroupKey]*Group, field.ErrorList, error) {
	groups := map[instance.GroupKey]*Group{}
	for tenant, configured := range c.Groups {
		for name := range configured {
			key := instance.GroupKey{Tenant: tenant, Group: name}
			group, err := merge(c, key, content.get(key))
			if err != nil {
				return nil, nil, err
			}
			groups[key] = group
		}
	}
	var problems field.ErrorList
	for _, key := range content.keys() {
		override := content.get(key)
		group, err := merge(c, key, override)
		if err != nil {
			return nil, nil, err
		}
		groups[key] = group
		problems = append(problems, validateStored(c, override, group)...)
	}
	return groups, problems, nil
}

// convertDropped returns c after converting the static groups that next does
// not name to dynamic groups, and their keys.
func (c content) convertDropped(next *config.Config) (converted content, dropped []instance.GroupKey) {
	converted = c
	for _, key := range c.keys() {
		override := c.get(key)
		if _, named := next.Groups[key.Tenant][key.Group]; !named && override != nil && override.WhenDropped != nil {
			converted = converted.with(key, override.WhenDropped)
			dropped = append(dropped, key)
		}
	}
	return converted, dropped
}

// updateWhenDropped returns c after updating, for each static group in it, the settings that
// the group gets when a configuration drops it, which may happen while the server is not
// running. groups are the groups of next.
func (c content) updateWhenDropped(next *config.Config, groups map[instance.GroupKey]*Group) content {
	updated := c
	for _, key := range c.keys() {
		group := groups[key]
		if !group.Static {
			continue
		}
		override, dynamic := *c.get(key), asDynamic(next, group)
		if reflect.DeepEqual(override.WhenDropped, dynamic) {
			continue
		}
		override.WhenDropped = dynamic
		updated = updated.with(key, &override)
	}
	return updated
}

func toErrors(list field.ErrorList) []error {
	errs := make([]error, len(list))
	for i, err := range list {
		errs[i] = err
	}
	return errs
}
