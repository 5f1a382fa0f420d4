// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"maps"
	"slices"

	"nstance.dev/operator/pkg/operator/shard"
)

// groupCache is the cache of one shard. The lock of Groups guards it.
type groupCache struct {
	shard string
	// holders has the shards of each group, of the caches of all shards.
	holders holders
	// groups are the groups by key. A group is replaced as a whole, never modified.
	groups map[string]shard.Group
	// sizes are the sizes of the groups by key, and size is their sum.
	sizes map[string]shard.Size
	size  shard.Size
	// touched are the keys that an event or Observe has set or removed since the last list was
	// started. The reply to the list may be older than these changes.
	touched map[string]struct{}
	// capacities has the last capacity of the Nodes, by instance type.
	capacities map[string]map[string]string

	// known reports whether groups contains all groups of the shard, from a list of this or an
	// earlier Serve.
	known bool
	// opened and listed report whether a watch was opened and a list succeeded since
	// Serve was called.
	opened, listed bool
	// listing is the number of the list that was started last, lastListed the number of the
	// last successful list. The lists of all shards are numbered in one sequence.
	listing, lastListed uint64
	// relist receives a token to request a list of the groups; nil while the shard is not
	// served.
	relist chan<- struct{}
	// open reports whether the watch is open now.
	open bool
	// fresh reports whether the last list succeeded and the watch has been open
	// since.
	fresh bool
	// reason is why the shard is not reachable; nil if it is reachable, and before the first
	// attempt.
	reason error
	link   link
}

// shardStatus is compared to decide whether OnShard is called.
type shardStatus struct {
	synced    bool
	reachable bool
	reason    error
}

func newGroupCache(shardID string, holders holders) *groupCache {
	return &groupCache{
		shard:      shardID,
		holders:    holders,
		groups:     map[string]shard.Group{},
		sizes:      map[string]shard.Size{},
		touched:    map[string]struct{}{},
		capacities: map[string]map[string]string{},
	}
}

func (c *groupCache) synced() bool    { return c.opened && c.listed }
func (c *groupCache) reachable() bool { return c.open && c.fresh }

func (c *groupCache) status() any {
	return shardStatus{synced: c.synced(), reachable: c.reachable(), reason: c.reason}
}

// restart resets the state of the connection and keeps the groups.
func (c *groupCache) restart() {
	*c = groupCache{
		shard: c.shard, holders: c.holders,
		groups: c.groups, sizes: c.sizes, size: c.size, known: c.known, touched: map[string]struct{}{}, capacities: c.capacities, link: c.link,
	}
}

// shardRemoved removes the shard from holders. It returns nil, because shardChanged covers all groups of
// a removed shard.
func (c *groupCache) shardRemoved() []string { //nolint:unparam // the caches of notices have keys
	for key := range c.groups {
		c.holders.remove(key, c.shard)
	}
	return nil
}

// put stores a group from an event or from Observe, and returns its key if the cache has
// changed. If the shard would have more than allowed, it returns an error and changes nothing.
func (c *groupCache) put(group shard.Group) ([]string, error) {
	if err := c.check(group); err != nil {
		return nil, err
	}
	c.touched[group.Key] = struct{}{}
	return c.set(group), nil
}

// check returns an error if the shard would have more than allowed with a group.
func (c *groupCache) check(group shard.Group) error {
	size, err := shard.Measure(group)
	if err != nil {
		return err
	}
	number := len(c.groups)
	if _, ok := c.groups[group.Key]; !ok {
		number++
	}
	if err := shard.Exceeds(shard.LimitGroups, "groups", number, shard.MaxGroups); err != nil {
		return err
	}
	return c.size.Sub(c.sizes[group.Key]).Add(size).Check()
}

// remove removes the group of a deletion event, and returns its key if the cache has changed.
func (c *groupCache) remove(key string) []string {
	c.touched[key] = struct{}{}
	return c.unset(key)
}

// startList must be called before each list, with the next number.
func (c *groupCache) startList(number uint64) {
	c.listing = number
	clear(c.touched)
}

// finishList makes the cache equal to the reply to the last list, except for groups that have
// changed since startList, and returns the keys of the groups that it has changed.
func (c *groupCache) finishList(groups []shard.Group) []string {
	c.known, c.listed = true, true
	c.lastListed = c.listing
	c.fresh = c.open
	c.clearReason()

	var changed []string
	present := make(map[string]struct{}, len(groups))
	for _, group := range groups {
		present[group.Key] = struct{}{}
		if _, newer := c.touched[group.Key]; !newer {
			changed = append(changed, c.set(group)...)
		}
	}
	for key := range c.groups {
		_, listed := present[key]
		_, newer := c.touched[key]
		if !listed && !newer {
			changed = append(changed, c.unset(key)...)
		}
	}
	return changed
}

// finishChanges makes the cache equal to the server by a list of what has changed since an earlier list,
// except for groups that have changed since startList, and returns the keys of the groups that it has
// changed. If the shard would have more than allowed, it returns a *shard.LimitError. ListedSince does
// not count such a list.
func (c *groupCache) finishChanges(groups []shard.Group, removed []string) (changed []string, err error) {
	// Removed groups make room for new groups.
	for _, key := range removed {
		if _, newer := c.touched[key]; !newer {
			changed = append(changed, c.unset(key)...)
		}
	}
	for _, group := range groups {
		if _, newer := c.touched[group.Key]; newer {
			continue
		}
		if err := c.check(group); err != nil {
			return changed, err
		}
		changed = append(changed, c.set(group)...)
	}
	c.fresh = c.open
	c.clearReason()
	return changed, nil
}

func (c *groupCache) listFailed(err error) {
	c.fresh = false
	c.setReason(err)
}

func (c *groupCache) watchOpened() {
	c.opened = true
	c.open = true
}

func (c *groupCache) watchLost(err error) {
	c.open = false
	// Changes up to the next opening arrive with the list after it.
	c.fresh = false
	c.setReason(err)
}

// clearReason clears the reason if the shard is reachable.
func (c *groupCache) clearReason() {
	if c.reachable() {
		c.reason = nil
	}
}

// setReason stores err as the reason unless the current one is of the same kind.
func (c *groupCache) setReason(err error) {
	if c.reason == nil || !sameKind(c.reason, err) {
		c.reason = err
	}
}

func sameKind(a, b error) bool {
	return shard.IsUnreachable(a) == shard.IsUnreachable(b) && shard.IsWrongServer(a) == shard.IsWrongServer(b) &&
		shard.IsOtherCluster(a) == shard.IsOtherCluster(b) && shard.IsNotServing(a) == shard.IsNotServing(b) &&
		shard.Exceeded(a) == shard.Exceeded(b)
}

func (c *groupCache) set(group shard.Group) []string {
	cached, ok := c.groups[group.Key]
	if ok && cached.Equal(group) {
		return nil
	}
	if cached.Shape.Equal(group.Shape) {
		// The shape of the cached group is kept, so that an equal copy takes no memory.
		group.Shape = cached.Shape
	} else {
		group.Shape = c.shareCapacity(group.InstanceType, group.Shape)
	}
	if !ok {
		c.holders.add(group.Key, c.shard)
	}
	c.groups[group.Key] = group
	// Only convert and check, which come before, need the error.
	size, _ := shard.Measure(group)
	c.size = c.size.Sub(c.sizes[group.Key]).Add(size)
	c.sizes[group.Key] = size
	return []string{group.Key}
}

// shareCapacity returns a shape equal to node whose Capacity map is shared with other groups
// of the same instance type: a shard may have thousands of groups, but few instance types.
func (c *groupCache) shareCapacity(instanceType string, node *shard.NodeShape) *shard.NodeShape {
	if node == nil {
		return nil
	}
	known, ok := c.capacities[instanceType]
	if !ok || !maps.Equal(known, node.Capacity) {
		c.capacities[instanceType] = node.Capacity
		return node
	}
	shared := *node
	shared.Capacity = known
	return &shared
}

func (c *groupCache) unset(key string) []string {
	if _, ok := c.groups[key]; !ok {
		return nil
	}
	delete(c.groups, key)
	c.holders.remove(key, c.shard)
	c.size = c.size.Sub(c.sizes[key])
	delete(c.sizes, key)
	return []string{key}
}

// holders has the sorted ids of the shards whose caches have a group, by its key, so that a change of
// a group visits its shards only. The slices are replaced, never modified.
type holders map[string][]string

func (h holders) add(key, shardID string) {
	if at, found := slices.BinarySearch(h[key], shardID); !found {
		h[key] = slices.Insert(slices.Clone(h[key]), at, shardID)
	}
}

func (h holders) remove(key, shardID string) {
	at, found := slices.BinarySearch(h[key], shardID)
	switch {
	case !found:
	case len(h[key]) == 1:
		delete(h, key)
	default:
		h[key] = slices.Delete(slices.Clone(h[key]), at, at+1)
	}
}
