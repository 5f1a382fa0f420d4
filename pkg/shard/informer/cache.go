// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import "nstance.dev/operator/pkg/shard"

// cache is what is known of one shard. The lock of Groups guards it.
type cache struct {
	// groups are by key. A group is replaced as a whole, never written to.
	groups map[string]shard.Group
	// touched are the keys that an event or Observe has set or removed since the
	// last list began. Its answer may be older than they are.
	touched map[string]struct{}

	// opened and listed are whether a watch was opened and a list succeeded since
	// Serve began.
	opened, listed bool
	// open is whether the watch is open now.
	open bool
	// fresh is whether the last list succeeded, and the watch that was open then
	// is the one that is open now.
	fresh bool
	// reason is why the shard is not reachable; nil when it is, and before
	// anything was tried.
	reason error
}

// condition is the part of a cache whose changes OnShard is called for.
type condition struct {
	synced    bool
	reachable bool
	reason    error
}

func newCache() *cache {
	return &cache{
		groups:  map[string]shard.Group{},
		touched: map[string]struct{}{},
	}
}

func (c *cache) synced() bool    { return c.opened && c.listed }
func (c *cache) reachable() bool { return c.open && c.fresh }

func (c *cache) condition() any {
	return condition{synced: c.synced(), reachable: c.reachable(), reason: c.reason}
}

// restart keeps the groups.
func (c *cache) restart() {
	*c = cache{groups: c.groups, touched: map[string]struct{}{}}
}

// dropped is nothing: who hears that the shard is gone knows of its groups.
func (c *cache) dropped() []string { return nil }

// put stores a group that an event or Observe brought, and returns its key if
// that changed anything.
func (c *cache) put(group shard.Group) []string {
	c.touched[group.Key] = struct{}{}
	return c.set(group)
}

// remove drops the group that an event says is gone, and returns its key if
// there was one.
func (c *cache) remove(key string) []string {
	c.touched[key] = struct{}{}
	return c.unset(key)
}

// listBegins is to be called before each list.
func (c *cache) listBegins() {
	clear(c.touched)
}

// listEnds makes the cache equal to the answer of the list that began last,
// except for what was learned since, and returns the keys of the groups that
// changed.
func (c *cache) listEnds(groups []shard.Group) []string {
	c.listed = true
	c.fresh = c.open
	c.settle()

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

func (c *cache) listFailed(err error) {
	c.fresh = false
	c.fail(err)
}

func (c *cache) watchOpened() {
	c.opened = true
	c.open = true
}

func (c *cache) watchLost(err error) {
	c.open = false
	// What changes until the next watch is known only after another list.
	c.fresh = false
	c.fail(err)
}

// settle drops the reason for not being reachable if the shard is.
func (c *cache) settle() {
	if c.reachable() {
		c.reason = nil
	}
}

// fail stores err as the reason unless the present one says the same in other
// words.
func (c *cache) fail(err error) {
	if c.reason == nil || shard.IsUnreachable(c.reason) != shard.IsUnreachable(err) {
		c.reason = err
	}
}

func (c *cache) set(group shard.Group) []string {
	if cached, ok := c.groups[group.Key]; ok && cached.Equal(group) {
		return nil
	}
	c.groups[group.Key] = group
	return []string{group.Key}
}

func (c *cache) unset(key string) []string {
	if _, ok := c.groups[key]; !ok {
		return nil
	}
	delete(c.groups, key)
	return []string{key}
}
