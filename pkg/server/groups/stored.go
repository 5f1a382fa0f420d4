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

// stored is what is kept of one group in the storage: an operator's changes to
// it, of which a static group takes size, what to remove first, instance type and
// vars only.
type stored struct {
	Template     string            `json:"template,omitempty"`
	Size         int32             `json:"size"`
	RemoveFirst  []string          `json:"remove_first,omitempty"`
	InstanceType string            `json:"instance_type,omitempty"`
	SubnetPools  []string          `json:"subnet_pools,omitempty"`
	Vars         map[string]string `json:"vars,omitempty"`
	// Args and DrainTimeout are those that the configuration gave a group before
	// it dropped it. Operators can set neither.
	Args         map[string]any   `json:"args,omitempty"`
	DrainTimeout *metav1.Duration `json:"drain_timeout,omitempty"`
	// WhenDropped is kept of a static group: what is stored instead when the
	// configuration drops it.
	WhenDropped *stored `json:"when_dropped,omitempty"`
}

// with returns what is stored after change. s may be nil. Restricted fields of
// a static group are not stored: the configuration alone decides them.
func (s *stored) with(change Change, static bool) *stored {
	next := stored{}
	if s != nil {
		next = *s
	}
	next.Size, next.RemoveFirst = change.Size, nil
	if len(change.RemoveFirst) > 0 {
		next.RemoveFirst = change.RemoveFirst
	}
	next.InstanceType = either(change.InstanceType, next.InstanceType)
	next.Vars = union(next.Vars, change.Vars)
	if !static {
		next.Template = either(change.Template, next.Template)
		if len(change.SubnetPools) > 0 {
			next.SubnetPools = change.SubnetPools
		}
	}
	return &next
}

// asDynamic returns what has to be stored so that group, static in c, stays what
// it is without the configuration's naming it.
//
// Args and drain timeout are kept only as far as they are the group's own. Since
// operators cannot change them, the rest of them has to go on following the
// template and the shard, or nobody could ever change it.
func asDynamic(c *config.Config, group *Group) *stored {
	configured := c.Groups[group.Key.Tenant][group.Key.Group]
	dynamic := &stored{
		Template:     group.Template,
		Size:         group.Size,
		RemoveFirst:  group.RemoveFirst,
		InstanceType: group.InstanceType,
		SubnetPools:  group.SubnetPools,
		Vars:         group.Vars,
		Args:         config.MergeArgs(configured.Args),
	}
	if configured.DrainTimeout != nil {
		dynamic.DrainTimeout = &metav1.Duration{Duration: *configured.DrainTimeout}
	}
	return dynamic
}

// content is what is stored by tenant and group. Nobody changes it.
type content map[string]map[string]*stored

// get returns nil when nothing is stored of the group.
func (c content) get(key instance.GroupKey) *stored {
	return c[key.Tenant][key.Group]
}

// with returns c with next under key, or with nothing there.
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

// keys returns the keys of all groups of which something is stored, in order.
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
