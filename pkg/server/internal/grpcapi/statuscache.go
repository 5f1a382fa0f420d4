// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Groups returns the desired state.
type Groups interface {
	Get(instance.GroupKey) (*groups.Group, bool)
	// Deleted reports whether a group was deleted.
	Deleted(instance.GroupKey) bool
	// HidesRevision reports whether a group is reported without its revision.
	HidesRevision(instance.GroupKey) bool
}

// Instances returns the actual state: the instances of a group that are not
// deleted.
type Instances interface {
	List(instance.GroupKey) []instance.Instance
}

// Nodes returns the properties of an instance's Node that are certain before it exists.
type Nodes interface {
	ExpectedNode(provider.Spec) *corev1.Node
}

// Shortfalls returns how many managed instances a group lacks because the provider has no
// capacity, and the reason; zero if it lacks no instances.
type Shortfalls interface {
	Of(group *groups.Group, instances []instance.Instance) (missing int32, message string)
}

// DeletionOrders returns the managed instances of a group in the order in which they are deleted
// if the group gets smaller.
type DeletionOrders interface {
	Of(group *groups.Group, instances []instance.Instance) []instance.NextDeletion
}

// groupWatcher queues the groups of a tenant that changed, by key, each with its
// latest status. A group that was deleted is sent as deleted, so a slow stream
// misses no deletion.
type groupWatcher = watcher[string, nstancev1.GroupEvent]

// StatusCache has the status of every group for lists and watches: of all existing groups,
// and of deleted or lost groups that still have instances. Callers that change a group or an
// instance call Refresh. Watchers get an event when the status differs.
type StatusCache struct {
	groups    Groups
	instances Instances
	nodes     Nodes
	// shortfalls is nil if the provider does not report shortfalls.
	shortfalls Shortfalls
	// orders is nil if no deletion orders are reported.
	orders   DeletionOrders
	watchers *watchers[string, nstancev1.GroupEvent]

	mu sync.Mutex
	// statuses are immutable. A new status replaces an old one.
	statuses map[instance.GroupKey]cachedStatus
}

// cachedStatus is the status of a group.
type cachedStatus struct {
	// group is nil if the group was deleted or lost.
	group  *groups.Group
	status *nstancev1.GroupStatus
}

// StatusOptions are the sources of a StatusCache. Shortfalls and DeletionOrders are optional.
type StatusOptions struct {
	Groups         Groups
	Instances      Instances
	Nodes          Nodes
	Shortfalls     Shortfalls
	DeletionOrders DeletionOrders
}

// NewStatusCache returns a StatusCache that is empty until groups are refreshed.
func NewStatusCache(options StatusOptions) *StatusCache {
	return &StatusCache{
		shortfalls: options.Shortfalls,
		orders:     options.DeletionOrders,
		groups:     options.Groups,
		instances:  options.Instances,
		nodes:      options.Nodes,
		watchers:   newWatchers[string, nstancev1.GroupEvent](),
		statuses:   map[instance.GroupKey]cachedStatus{},
	}
}

// Refresh computes the statuses of groups in one step. It never waits for a watcher.
func (c *StatusCache) Refresh(keys ...instance.GroupKey) {
	// Reading with mu locked keeps an older status from replacing a newer one.
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		before, after := c.statuses[key], c.status(key)
		// Comparing all fields of a changed group would take too long.
		equal := before.status.GetEtag() == after.status.GetEtag() && proto.Equal(before.status, after.status)
		switch {
		case after.status == nil:
			delete(c.statuses, key)
		case equal:
			c.statuses[key] = cachedStatus{after.group, before.status}
		default:
			c.statuses[key] = after
		}
		if !equal {
			c.watchers.publish(key.Tenant, key.Group, newGroupEvent(key, after.status))
		}
	}
}

// status computes the status of a group, nil if the group does not exist. A
// deleted or lost group exists until its last instance is deleted. mu must be locked.
func (c *StatusCache) status(key instance.GroupKey) cachedStatus {
	instances := managed(c.instances.List(key))
	group, found := c.groups.Get(key)
	switch {
	case found:
		return cachedStatus{group, c.statusOf(group, instances)}
	case len(instances) == 0:
		return cachedStatus{}
	case c.groups.Deleted(key):
		return cachedStatus{nil, newDeletingStatus(key, c.statuses[key].status, instances)}
	default:
		return cachedStatus{nil, newLostStatus(key, instances)}
	}
}

// get returns the status of a group after a request that stored it: the cached status unless
// the group was changed again.
func (c *StatusCache) get(group *groups.Group) *nstancev1.GroupStatus {
	c.mu.Lock()
	cached := c.statuses[group.Key]
	c.mu.Unlock()
	if cached.group == group {
		return cached.status
	}
	return c.statusOf(group, managed(c.instances.List(group.Key)))
}

// statusOf returns the status of a group with these instances. Without
// its revision, the operator sends the group again.
func (c *StatusCache) statusOf(group *groups.Group, instances []instance.Instance) *nstancev1.GroupStatus {
	status := newStatus(group, instances, c.nodes.ExpectedNode(provision.Common(group)))
	if c.shortfalls != nil {
		if missing, message := c.shortfalls.Of(group, instances); missing > 0 {
			status.Shortfall = &nstancev1.Shortfall{Missing: missing, Message: validText(message)}
		}
	}
	if c.groups.HidesRevision(group.Key) {
		// The size may be another soon.
		setRevision(status, nil)
		return status
	}
	if c.orders != nil {
		setDeletionOrder(status, c.orders.Of(group, instances), instances)
	}
	return status
}

// Close closes all watches, present and future.
func (c *StatusCache) Close() {
	c.watchers.close()
}

// list returns the statuses of a tenant's groups, sorted by key.
func (c *StatusCache) list(tenant string) []*nstancev1.GroupStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*nstancev1.GroupStatus
	for key, cached := range c.statuses {
		if key.Tenant == tenant {
			list = append(list, cached.status)
		}
	}
	slices.SortFunc(list, func(x, y *nstancev1.GroupStatus) int { return strings.Compare(x.Key, y.Key) })
	return list
}

// watch returns a watcher that begins with all groups of the tenant. The caller
// removes it with c.watchers.unwatch.
func (c *StatusCache) watch(tenant string) *groupWatcher {
	// With mu locked no status changes in between.
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.watchers.watch(&groupWatcher{tenant: tenant})
	for _, key := range slices.SortedFunc(maps.Keys(c.statuses), instance.GroupKey.Compare) {
		if key.Tenant == tenant {
			w.add(key.Group, newGroupEvent(key, c.statuses[key].status))
		}
	}
	return w
}
