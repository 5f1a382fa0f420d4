// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
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

// maxDeletionOrder is how many instances of a deletion order are reported.
const maxDeletionOrder = 100

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

// newGroupEvent returns the event of a status, which is nil if the group was deleted.
func newGroupEvent(key instance.GroupKey, status *nstancev1.GroupStatus) *nstancev1.GroupEvent {
	if status != nil {
		return &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: status}
	}
	return &nstancev1.GroupEvent{
		Type:  nstancev1.GroupEvent_TYPE_DELETE,
		Group: &nstancev1.GroupStatus{Key: key.Group, Tenant: key.Tenant},
	}
}

// newStatus returns the status of a group and of its instances. node is nil if the provider
// cannot predict its properties.
func newStatus(group *groups.Group, instances []instance.Instance, node *corev1.Node) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{
		Key:         group.Key.Group,
		Tenant:      group.Key.Tenant,
		Size:        group.Size,
		IsStatic:    group.Static,
		Etag:        group.ETag,
		RemoveFirst: group.RemoveFirst,
		Node:        newNodeShape(node),
	}
	if group.MinSize > 0 {
		status.Limits = &nstancev1.GroupLimits{MinSize: group.MinSize}
	}
	setSettings(status, group)
	setRevision(status, group.Revision)
	setInstances(status, instances)
	return status
}

// newDeletingStatus returns the status of a deleted group that still has instances, all of
// which are being deleted. last is its last reported status. It is nil if the server has
// started since the deletion: then only the instances are known.
func newDeletingStatus(key instance.GroupKey, last *nstancev1.GroupStatus, instances []instance.Instance) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{}
	if last != nil {
		// The settings stay the settings of the deleted group.
		status = proto.CloneOf(last)
	}
	status.Key, status.Tenant = key.Group, key.Tenant
	status.Deleting = true
	status.Size, status.RemoveFirst, status.DeletionOrder, status.Declared = 0, nil, nil, &nstancev1.GroupSettings{}
	setRevision(status, nil)
	setInstances(status, instances)
	return status
}

// newLostStatus returns the status of a group that the storage has lost: only its
// instances are known. It is not being deleted, and has the size that keeps them. Without
// a revision, each operator that has the group sends it.
func newLostStatus(key instance.GroupKey, instances []instance.Instance) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{
		Key: key.Group, Tenant: key.Tenant, Size: int32(len(instances)), Declared: &nstancev1.GroupSettings{},
	}
	setRevision(status, nil)
	setInstances(status, instances)
	return status
}

// setInstances lists all instances in the extension field, and the provider ids of running
// instances in the field that clients without the extension read
// (docs/protocol.md#extensions).
func setInstances(status *nstancev1.GroupStatus, instances []instance.Instance) {
	list := make([]*nstancev1.ManagedInstance, len(instances))
	status.ProviderIds = nil
	for n := range instances {
		i := &instances[n]
		list[n] = &nstancev1.ManagedInstance{
			Id:         i.ID,
			ProviderId: i.ProviderID,
			Status:     instanceStatus(i),
			CreatedAt:  timestamppb.New(i.CreatedAt),
		}
		if isListed(i) {
			status.ProviderIds = append(status.ProviderIds, i.ProviderID)
		}
	}
	slices.SortFunc(list, func(a, b *nstancev1.ManagedInstance) int { return strings.Compare(a.Id, b.Id) })
	status.Instances = &nstancev1.ManagedInstances{Instances: list}
	slices.Sort(status.ProviderIds)
	status.ActualSize = int32(len(status.ProviderIds))
}

// isListed reports whether the provider id of an instance is reported. Draining and impaired
// instances run. An instance that is being deleted is listed until it is deleted: a client that
// does not find the id may delete the Node too early. Without a provider id no client finds the
// Node.
func isListed(i *instance.Instance) bool {
	runs := i.State == instance.Running || i.State == instance.Impaired ||
		i.State == instance.Terminating && i.DeleteReason != ""
	return runs && i.ProviderID != ""
}

// setDeletionOrder reports the first listed instances of a deletion order. Instances that do not
// run change too often, and each change would be a write of the operator.
func setDeletionOrder(status *nstancev1.GroupStatus, order []instance.NextDeletion, instances []instance.Instance) {
	runs := make(map[string]bool, len(instances))
	for n := range instances {
		runs[instances[n].ID] = isListed(&instances[n])
	}
	for _, next := range order {
		if len(status.DeletionOrder) == maxDeletionOrder {
			return
		}
		if runs[next.ID] {
			status.DeletionOrder = append(status.DeletionOrder, &nstancev1.NextDeletion{InstanceId: next.ID, Reason: next.Reason})
		}
	}
}

// usable reports whether an instance can be used. A draining instance can be used until it is
// being deleted, and so can an impaired instance, which the server replaces. A running
// instance whose provider id is not recorded yet cannot: no client could find its Node.
func usable(i *instance.Instance) bool {
	return (i.State == instance.Running || i.State == instance.Impaired) && i.ProviderID != ""
}

// managed returns the instances that count in the size of their group. On-demand
// instances do not count, and outlive the group (docs/server.md#instances).
func managed(instances []instance.Instance) []instance.Instance {
	return slices.DeleteFunc(slices.Clone(instances), func(i instance.Instance) bool { return i.OnDemand })
}

// newNodeShape returns the known properties of a Node, or nil if node is nil.
func newNodeShape(node *corev1.Node) *nstancev1.NodeShape {
	if node == nil {
		return nil
	}
	shape := &nstancev1.NodeShape{
		Architecture:    node.Status.NodeInfo.Architecture,
		OperatingSystem: node.Status.NodeInfo.OperatingSystem,
		Capacity:        make(map[string]string, len(node.Status.Capacity)),
		Labels:          node.Labels,
	}
	for name, quantity := range node.Status.Capacity {
		shape.Capacity[string(name)] = quantity.String()
	}
	for _, taint := range node.Spec.Taints {
		shape.Taints = append(shape.Taints, &nstancev1.NodeTaint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	return shape
}
