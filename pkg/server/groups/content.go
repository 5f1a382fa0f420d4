// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// content is the whole stored object: the groups of all tenants. It is immutable.
type content struct {
	// groups are the stored settings by tenant and group.
	groups map[string]map[string]*stored
	// retired are the retired uids by tenant.
	retired map[string]*retiredUIDs
	// marks are the groups that were deleted or are unconfirmed.
	marks marks
	// unknown are fields beside the tenants that a later version has stored.
	unknown storage.UnknownFields
}

// edit is the stored state of one group and its tenant: the settings, nil if nothing is
// stored, the mark of the group, and the retired uids of the tenant.
type edit struct {
	group   *stored
	mark    mark
	retired *retiredUIDs
}

// get returns nil if nothing is stored for the group.
func (c content) get(key instance.GroupKey) *stored {
	return c.groups[key.Tenant][key.Group]
}

// current returns the edit that changes nothing.
func (c content) current(key instance.GroupKey) edit {
	return edit{group: c.get(key), mark: c.marks.get(key), retired: c.retired[key.Tenant]}
}

// apply returns a copy of c after e.
func (c content) apply(key instance.GroupKey, e edit) content {
	c = c.with(key, e.group)
	c.marks = c.marks.with(key, e.mark)
	if e.retired != c.retired[key.Tenant] {
		changed := maps.Clone(c.retired)
		if changed == nil {
			changed = map[string]*retiredUIDs{}
		}
		if e.retired != nil {
			changed[key.Tenant] = e.retired
		} else {
			delete(changed, key.Tenant)
		}
		c.retired = changed
	}
	return c
}

// with returns a copy of c with next under key. A nil next removes the key.
func (c content) with(key instance.GroupKey, next *stored) content {
	changed := maps.Clone(c.groups)
	if changed == nil {
		changed = map[string]map[string]*stored{}
	}
	tenant := maps.Clone(changed[key.Tenant])
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
	c.groups = changed
	return c
}

// keys returns the keys of all stored groups, in order.
func (c content) keys() []instance.GroupKey {
	var keys []instance.GroupKey
	for tenant, groups := range c.groups {
		for name := range groups {
			keys = append(keys, instance.GroupKey{Tenant: tenant, Group: name})
		}
	}
	slices.SortFunc(keys, instance.GroupKey.Compare)
	return keys
}

// stored contains an operator's changes of one group, as they are stored. A
// static group has only size, remove_first, rotation, replace, instance_type, candidates,
// return_after_seconds, vars, load_balancers, drain_timeout_seconds and node.
type stored struct {
	Settings
	Size        int32    `json:"size"`
	RemoveFirst []string `json:"remove_first,omitempty"`
	// Rotation is the grant of the last change, or nil.
	Rotation *RotationGrant `json:"rotation,omitempty"`
	Replace  []string       `json:"replace,omitempty"`
	// Revision is the revision of the last change that had a revision, or nil.
	Revision *Revision `json:"revision,omitempty"`
	// Declared are the settings of the last declarative change, or nil. The next declarative
	// change removes settings that it leaves out.
	Declared *Settings `json:"declared,omitempty"`
	// Args and DrainTimeout are the settings of a formerly static group that the configuration has
	// dropped. Operators cannot set them; DrainTimeoutSeconds overrides DrainTimeout.
	Args         map[string]any   `json:"args,omitempty"`
	DrainTimeout *metav1.Duration `json:"drain_timeout,omitempty"`
	// WhenDropped is set for a static group. It replaces this value when the configuration
	// drops the group.
	WhenDropped *stored `json:"when_dropped,omitempty"`
	// Unknown are fields that a later version has stored.
	Unknown storage.UnknownFields `json:"-"`
}

// plainStored is stored without its methods, for package json.
type plainStored stored

// MarshalJSON returns the stored form.
func (s *stored) MarshalJSON() ([]byte, error) {
	return storage.Encode((*plainStored)(s), s.Unknown)
}

// UnmarshalJSON reads the result of MarshalJSON of any version. Without a size, an unknown
// field is more likely a typing mistake.
func (s *stored) UnmarshalJSON(data []byte) error {
	plain, unknown, err := storage.Decode[plainStored](data)
	if err != nil {
		return err
	}
	if len(unknown) > 0 {
		var size struct{ Size *int32 }
		if err := json.Unmarshal(data, &size); err != nil {
			return err
		}
		if size.Size == nil {
			return fmt.Errorf("size is missing, and there are unknown fields: %s", slices.Sorted(maps.Keys(unknown)))
		}
	}
	plain.Unknown = unknown
	*s = stored(plain)
	return nil
}

// with returns s after change. s may be nil. Restricted fields of a static
// group are not stored, because only the configuration sets them.
func (s *stored) with(change Change, static bool) *stored {
	next := stored{}
	if s != nil {
		next = *s
	}
	next.Size, next.RemoveFirst, next.Replace = change.Size, nil, nil
	if len(change.RemoveFirst) > 0 {
		next.RemoveFirst = change.RemoveFirst
	}
	if len(change.Replace) > 0 {
		next.Replace = change.Replace
	}
	next.Rotation = change.Rotation
	if change.Revision != nil {
		next.Revision = change.Revision
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

// asDynamic returns the settings to store for group, which is static in c, so that it keeps
// them without the configuration.
//
// Args, the drain timeout, load balancers and node settings are stored only if they are not those of
// the template and the shard: the rest must continue to follow these, or it could never change.
func asDynamic(c *config.Config, group *Group) *stored {
	configured := c.Groups[group.Key.Tenant][group.Key.Group]
	dynamic := &stored{
		Settings:    group.Settings,
		Size:        group.Size,
		RemoveFirst: group.RemoveFirst,
		Rotation:    group.Rotation,
		Replace:     group.Replace,
		Declared:    group.Declared,
		Revision:    group.Revision,
		Args:        config.MergeArgs(configured.Args),
	}
	if configured.LoadBalancers == nil && slices.Equal(group.LoadBalancers, c.Templates[group.Template].LoadBalancers) {
		dynamic.LoadBalancers = nil
	}
	dynamic.Node = group.Node.Beyond(c.Templates[group.Template].Node)
	if configured.DrainTimeout != nil {
		dynamic.DrainTimeout = &metav1.Duration{Duration: *configured.DrainTimeout}
	}
	return dynamic
}
