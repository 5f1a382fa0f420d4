// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// Reconfigure puts another configuration in force, for all groups at once. The
// error wraps a *config.InvalidError with all that speaks against it, or is one
// of the storage; then nothing has changed.
//
// A group that next names is static from now on. What was stored of it stays,
// as an operator's changes to it. A static group that next does not name any
// more becomes a dynamic one that is what it was: no instance ends because a
// configuration was edited, and to delete the group is the operator's.
func (s *Store) Reconfigure(ctx context.Context, next *config.Config) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	content := s.content
	for key, group := range s.groups {
		if _, named := next.Groups[key.Tenant][key.Group]; group.Static && !named {
			content = content.with(key, &stored{WhenDropped: asDynamic(s.config, group)})
		}
	}
	return s.apply(ctx, next, content, s.config.CheckReplacement(next))
}

// apply puts next in force with what is stored in content, unless there are
// problems. It is called with writing held.
func (s *Store) apply(ctx context.Context, next *config.Config, content content, problems field.ErrorList) error {
	content, dropped := content.settle(next)
	groups, unfit, err := mergeAll(next, content)
	if err != nil {
		return err
	}
	mistakes := toErrors(problems)
	if len(unfit) > 0 {
		mistakes = append(mistakes, fmt.Errorf("dynamic groups in %s:\n%w", s.object.key, errors.Join(toErrors(unfit)...)))
	}
	if len(mistakes) > 0 {
		return &config.InvalidError{Mistakes: errors.Join(mistakes...)}
	}

	content = content.remember(next, groups)
	if !reflect.DeepEqual(content, s.content) {
		if err := s.object.write(ctx, content); err != nil {
			return fmt.Errorf("settling the groups: %w", err)
		}
		s.content = content
	}
	logger := klog.FromContext(ctx)
	for _, key := range dropped {
		logger.Info("The configuration names a group no more, it goes on as a dynamic one", "tenant", key.Tenant, "group", key.Group)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config, s.groups = next, groups
	return nil
}

// mergeAll returns all groups that are configured or stored, and what is wrong
// with those stored.
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

// settle returns c with the static groups that next does not name as the dynamic
// ones that they become, and their keys.
func (c content) settle(next *config.Config) (settled content, dropped []instance.GroupKey) {
	settled = c
	for _, key := range c.keys() {
		override := c.get(key)
		if _, named := next.Groups[key.Tenant][key.Group]; !named && override != nil && override.WhenDropped != nil {
			settled = settled.with(key, override.WhenDropped)
			dropped = append(dropped, key)
		}
	}
	return settled, dropped
}

// remember returns c with what each static group in it is to become when a
// configuration drops it, be that while the server does not run. groups are those
// of next.
func (c content) remember(next *config.Config, groups map[instance.GroupKey]*Group) content {
	remembered := c
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
		remembered = remembered.with(key, &override)
	}
	return remembered
}

func toErrors(list field.ErrorList) []error {
	errs := make([]error, len(list))
	for i, err := range list {
		errs[i] = err
	}
	return errs
}
