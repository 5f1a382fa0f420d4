// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"crypto/rand"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
	"nstance.dev/operator/pkg/server/provider"
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
// if the group gets smaller, and the progress of its rotation.
type DeletionOrders interface {
	Of(group *groups.Group, instances []instance.Instance) ([]instance.NextDeletion, instance.RotationProgress)
}

// Candidates returns how many instances of a group are of each of its candidates, nil for a group
// without candidates.
type Candidates interface {
	Uses(group *groups.Group, instances []instance.Instance) []stock.Use
}

// groupWatcher queues the groups of a tenant that changed, by key, each with its
// latest status. A group that was deleted is sent as deleted, so a slow stream
// misses no deletion.
type groupWatcher = watcher[string, nstancev1.GroupEvent]

// StatusCache has the status of every group for lists and watches: of all existing groups,
// and of deleted or lost groups that still have instances. Callers that change a group call
// Refresh, and callers that change an instance call RefreshSoon. Watchers get an event when the
// status differs.
type StatusCache struct {
	groups    Groups
	instances Instances
	nodes     Nodes
	// shortfalls is nil if the provider does not report shortfalls.
	shortfalls Shortfalls
	// orders is nil if no deletion orders are reported.
	orders DeletionOrders
	// candidates is nil if the use of candidates is not reported.
	candidates Candidates
	watchers   *watchers[string, nstancev1.GroupEvent]

	mu sync.Mutex
	// statuses are immutable. A new status replaces an old one.
	statuses map[instance.GroupKey]cachedStatus
	// dirty has the timers of the groups whose statuses are refreshed soon.
	dirty map[instance.GroupKey]*time.Timer
	// closed is true after Close.
	closed bool
	// versions number the changes of statuses.
	versions versions
}

// cachedStatus is the status of a group.
type cachedStatus struct {
	// group is nil if the group was deleted or lost.
	group  *groups.Group
	status *nstancev1.GroupStatus
	// at is when the status was computed last.
	at time.Time
	// version is the number of the change to this status.
	version uint64
}

// The status of a group names all of its instances, so that its computation and its size grow with
// them. While instances change one after the other, it is computed once in minRefreshInterval and
// refreshIntervalPerInstance for each instance, at most once in maxRefreshInterval: operators collect
// changes for a second in any case.
const (
	minRefreshInterval         = 100 * time.Millisecond
	refreshIntervalPerInstance = 100 * time.Microsecond
	maxRefreshInterval         = time.Second
)

// nextRefresh returns when a status may be computed again.
func (c cachedStatus) nextRefresh() time.Time {
	instances := len(c.status.GetInstances().GetInstances())
	return c.at.Add(min(minRefreshInterval+time.Duration(instances)*refreshIntervalPerInstance, maxRefreshInterval))
}

// maxRemoved is how many groups of a tenant that no longer exist are remembered. A client that knows
// an older version than they have gets all groups.
const maxRemoved = 1000

// versions number the changes of each tenant's statuses, so that a list can have only what has changed
// since another list. A tenant learns nothing of others by the numbers. The lock of StatusCache guards
// them.
type versions struct {
	// term identifies the leader's term: another leader starts other numbers.
	term    string
	tenants map[string]*tenantVersions
}

// tenantVersions are the versions of one tenant's groups.
type tenantVersions struct {
	term string
	// last is the number of the last change.
	last uint64
	// removed has the changes by which groups ceased to exist. Those up to forgotten are not known.
	removed   map[string]uint64
	forgotten uint64
}

func newVersions() versions {
	return versions{term: rand.Text(), tenants: map[string]*tenantVersions{}}
}

func (v *versions) of(tenant string) *tenantVersions {
	if v.tenants[tenant] == nil {
		v.tenants[tenant] = &tenantVersions{term: v.term, removed: map[string]uint64{}}
	}
	return v.tenants[tenant]
}

// change numbers a change of a group that exists.
func (v *tenantVersions) change(group string) uint64 {
	delete(v.removed, group)
	v.last++
	return v.last
}

// remove numbers the change by which a group ceases to exist.
func (v *tenantVersions) remove(group string) {
	if len(v.removed) >= maxRemoved {
		clear(v.removed)
		v.forgotten = v.last
	}
	v.last++
	v.removed[group] = v.last
}

// removedSince returns the groups that have ceased to exist since a change, sorted.
func (v *tenantVersions) removedSince(since uint64) (groups []string) {
	for group, number := range v.removed {
		if number > since {
			groups = append(groups, group)
		}
	}
	slices.Sort(groups)
	return groups
}

// format returns the present version.
func (v *tenantVersions) format() string { return v.term + "." + strconv.FormatUint(v.last, 10) }

// parse returns the number of a version, and whether everything that has changed since is known. The
// number is 0 if it is not.
func (v *tenantVersions) parse(version string) (since uint64, known bool) {
	term, number, _ := strings.Cut(version, ".")
	since, err := strconv.ParseUint(number, 10, 64)
	if err != nil || term != v.term || since < v.forgotten || since > v.last {
		return 0, false
	}
	return since, true
}

// StatusOptions are the sources of a StatusCache. Shortfalls, DeletionOrders and Candidates are optional.
type StatusOptions struct {
	Groups         Groups
	Instances      Instances
	Nodes          Nodes
	Shortfalls     Shortfalls
	DeletionOrders DeletionOrders
	Candidates     Candidates
}

// NewStatusCache returns a StatusCache that is empty until groups are refreshed.
func NewStatusCache(options StatusOptions) *StatusCache {
	return &StatusCache{
		shortfalls: options.Shortfalls,
		orders:     options.DeletionOrders,
		candidates: options.Candidates,
		groups:     options.Groups,
		instances:  options.Instances,
		nodes:      options.Nodes,
		watchers:   newWatchers[string, nstancev1.GroupEvent](),
		statuses:   map[instance.GroupKey]cachedStatus{},
		dirty:      map[instance.GroupKey]*time.Timer{},
		versions:   newVersions(),
	}
}

// Refresh computes the statuses of groups in one step. It never waits for a watcher.
func (c *StatusCache) Refresh(keys ...instance.GroupKey) {
	// Reading with mu locked keeps an older status from replacing a newer one.
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(keys...)
}

// RefreshSoon computes the statuses of groups whose instances have changed: at once, or later if a
// status was computed a short time ago. Lists and new watches do not wait for that.
func (c *StatusCache) RefreshSoon(keys ...instance.GroupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		if c.dirty[key] != nil || c.closed {
			continue
		}
		wait := time.Until(c.statuses[key].nextRefresh())
		if wait <= 0 {
			c.refresh(key)
			continue
		}
		c.dirty[key] = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			// Close, or another refresh, may have been first.
			if c.dirty[key] != nil {
				c.refresh(key)
			}
		})
	}
}

// refreshDirty computes the statuses of a tenant's groups that are refreshed soon. mu must be locked.
func (c *StatusCache) refreshDirty(tenant string) {
	for key := range c.dirty {
		if key.Tenant == tenant {
			c.refresh(key)
		}
	}
}

// refresh computes the statuses of groups. mu must be locked.
func (c *StatusCache) refresh(keys ...instance.GroupKey) {
	for _, key := range keys {
		if timer := c.dirty[key]; timer != nil {
			timer.Stop()
			delete(c.dirty, key)
		}
		before, after := c.statuses[key], c.status(key)
		after.at = time.Now()
		// Comparing all fields of a changed group would take too long.
		equal := before.status.GetEtag() == after.status.GetEtag() && proto.Equal(before.status, after.status)
		switch {
		case after.status == nil && before.status == nil:
		case after.status == nil:
			delete(c.statuses, key)
			c.versions.of(key.Tenant).remove(key.Group)
		case equal:
			after.status, after.version = before.status, before.version
			c.statuses[key] = after
		default:
			after.version = c.versions.of(key.Tenant).change(key.Group)
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
		return cachedStatus{group: group, status: c.statusOf(group, instances)}
	case len(instances) == 0:
		return cachedStatus{}
	case c.groups.Deleted(key):
		return cachedStatus{status: newDeletingStatus(key, c.statuses[key].status, instances)}
	default:
		return cachedStatus{status: newLostStatus(key, instances)}
	}
}

// get returns the status of a group after a request that stored it: the cached status unless
// the group was changed again.
func (c *StatusCache) get(group *groups.Group) *nstancev1.GroupStatus {
	c.mu.Lock()
	if c.dirty[group.Key] != nil {
		c.refresh(group.Key)
	}
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
	status := newStatus(group, instances, c.expectedNode(group))
	if c.candidates != nil {
		setCandidateUse(status, c.candidates.Uses(group, instances))
	}
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
		order, progress := c.orders.Of(group, instances)
		setDeletionOrder(status, order, instances)
		setProgress(status, progress, order)
	}
	return status
}

// Close closes all watches, present and future.
func (c *StatusCache) Close() {
	c.watchers.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, timer := range c.dirty {
		timer.Stop()
	}
	clear(c.dirty)
}

// listSince returns the groups of a tenant, sorted by key, that have changed since the version of an
// earlier list, or all groups if it is not known what has.
func (c *StatusCache) listSince(tenant, version string) *nstancev1.ListGroupsResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshDirty(tenant)
	versions := c.versions.of(tenant)
	since, known := versions.parse(version)
	list := &nstancev1.ListGroupsResponse{Version: versions.format(), Changes: known}
	for key, cached := range c.statuses {
		if key.Tenant == tenant && cached.version > since {
			list.Groups = append(list.Groups, cached.status)
		}
	}
	slices.SortFunc(list.Groups, func(x, y *nstancev1.GroupStatus) int { return strings.Compare(x.Key, y.Key) })
	if known {
		list.Removed = versions.removedSince(since)
	}
	return list
}

// watch returns a watcher that begins with all groups of the tenant. The caller
// removes it with c.watchers.unwatch.
func (c *StatusCache) watch(tenant string) *groupWatcher {
	// With mu locked no status changes in between.
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshDirty(tenant)
	w := c.watchers.watch(&groupWatcher{tenant: tenant})
	for _, key := range slices.SortedFunc(maps.Keys(c.statuses), instance.GroupKey.Compare) {
		if key.Tenant == tenant {
			w.add(key.Group, newGroupEvent(key, c.statuses[key].status))
		}
	}
	return w
}
