// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// stored contains an operator's changes of one group, as they are stored. A
// static group has only size, remove_first, instance_type and vars.
type stored struct {
	Settings
	Size        int32    `json:"size"`
	RemoveFirst []string `json:"remove_first,omitempty"`
	// Declared are the settings of the last declarative change, nil when there was
	// none. The next one removes what it leaves out of them.
	Declared *Settings `json:"declared,omitempty"`
	// Args and DrainTimeout are the settings of a formerly static group that
	// the configuration has dropped. Operators cannot set them.
	Args         map[string]any   `json:"args,omitempty"`
	DrainTimeout *metav1.Duration `json:"drain_timeout,omitempty"`
	// WhenDropped, of a static group, is what replaces this value when the
	// configuration drops the group.
	WhenDropped *stored `json:"when_dropped,omitempty"`
}

// with returns s after change. s may be nil. Restricted fields of a static
// group are not stored, because only the configuration sets them.
func (s *stored) with(change Change, static bool) *stored {
	next := stored{}
	if s != nil {
		next = *s
	}
	next.Size, next.RemoveFirst = change.Size, nil
	if len(change.RemoveFirst) > 0 {
		next.RemoveFirst = change.RemoveFirst
	}
	settings := next.merge(change.Settings)
	if change.Declarative {
		if next.Declared != nil {
			settings = settings.without(*next.Declared, change.Settings)
		}
		next.Declared = &change.Settings
	}
	if static {
		settings = settings.restricted(next.Settings)
	}
	next.Settings = settings
	return &next
}

// asDynamic returns what must be stored for group, which is static in c, to
// keep its settings without the configuration.
//
// Args and the drain timeout are stored only as far as the group itself sets
// them. Operators cannot change them, so the rest must continue to follow the
// template and the shard, or it could never change.
func asDynamic(c *config.Config, group *Group) *stored {
	configured := c.Groups[group.Key.Tenant][group.Key.Group]
	dynamic := &stored{
		Settings:    group.Settings,
		Size:        group.Size,
		RemoveFirst: group.RemoveFirst,
		Declared:    group.Declared,
		Args:        config.MergeArgs(configured.Args),
	}
	if configured.DrainTimeout != nil {
		dynamic.DrainTimeout = &metav1.Duration{Duration: *configured.DrainTimeout}
	}
	return dynamic
}

// content contains the stored settings by tenant and group. It is immutable.
type content map[string]map[string]*stored

// get returns nil when nothing is stored of the group.
func (c content) get(key instance.GroupKey) *stored {
	return c[key.Tenant][key.Group]
}

// with returns a copy of c with next under key. A nil next removes the key.
func (c content) with(key instance.GroupKey, next *stored) content {
	changed := maps.Clone(c)
	tenant := maps.Clone(c[key.Tenant])
	if next != nil {
		if tenant == nil {
			tenant = map[string]*stored{}
		}
		tenant[key.Group] = next
	} else {
		delete(tenant, key.Group)
	}
	if len(tenant) > 0 {
		changed[key.Tenant] = tenant
	} else {
		delete(changed, key.Tenant)
	}
	return changed
}

// keys returns the keys of all stored groups, in order.
func (c content) keys() []instance.GroupKey {
	var keys []instance.GroupKey
	for tenant, groups := range c {
		for name := range groups {
			keys = append(keys, instance.GroupKey{Tenant: tenant, Group: name})
		}
	}
	slices.SortFunc(keys, instance.GroupKey.Compare)
	return keys
}
