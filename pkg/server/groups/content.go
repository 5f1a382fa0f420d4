// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"maps"
	"slices"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage/objectformat"
)

// content is everything that is stored. It is immutable.
type content struct {
	// groups are the stored settings by tenant and group.
	groups map[string]map[string]*stored
	// retired are the retired uids by tenant.
	retired map[string]*retiredUIDs
	// marks are the groups that were deleted or are unconfirmed.
	marks marks
	// unknown are fields beside the tenants that a later version has stored.
	unknown objectformat.Fields
}

// edit is what a request makes of the content: what is stored of its group, nil for
// nothing, the mark of the group, and the retired uids of its tenant.
type edit struct {
	group   *stored
	mark    mark
	retired *retiredUIDs
}

// get returns nil when nothing is stored of the group.
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
