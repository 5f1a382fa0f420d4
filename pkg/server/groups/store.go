// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// Store stores the groups of one shard. It is safe for concurrent use. Reads
// are answered from memory, even while a change is being stored.
//
// A Store assumes that it is the only writer. An error that wraps
// storage.ErrConflict shows that another server leads the shard. The Store is
// then outdated, and every later change fails.
type Store struct {
	// batchMu guards batch, the changes that the next write stores. batch is nil if there are
	// no changes.
	batchMu sync.Mutex
	batch   *batch
	// expected is how many changes the next write waits for, at most for gatherTime. writeMu guards it.
	expected   int
	gatherTime time.Duration

	// writeMu serializes writes and guards object and content.
	writeMu sync.Mutex
	object  object
	// deferred is true while content is not stored, because the storage may have lost the
	// object. CheckPresent stores it.
	deferred bool
	// content is the content of the object as acknowledged to clients. It does
	// not include failed changes.
	content content

	// mu guards the fields below. Changing them requires writeMu, too.
	mu sync.RWMutex
	// config is the current configuration.
	config *config.Config
	// groups are all merged groups.
	groups map[instance.GroupKey]*Group
	// marks are the marks of content.
	marks marks
	// refused are the unconfirmed groups for which a request was refused as stale.
	refused map[instance.GroupKey]struct{}
	// deletedBy are the requests that have deleted the groups for which Deleted is true.
	deletedBy map[instance.GroupKey]audit.Request
}

// Open reads the dynamic groups of the shard from store. Without an object there are no
// dynamic groups. It is an error if the object is damaged, or if the template, instance type
// or subnet pool of a group is no longer configured: ignoring the group would terminate its
// instances.
//
// accepted is the configuration that was in force before, or nil. A static group that
// accepted names and c does not becomes dynamic, as in Reconfigure. Without accepted this
// happens only to groups that an operator changed while they were static: the settings of
// others are not stored.
func Open(ctx context.Context, accepted, c *config.Config, store storage.Store) (*Store, error) {
	s := &Store{
		object:     object{store: store, key: storage.GroupsKey(c.Shard.ID)},
		gatherTime: gatherTime,
		refused:    map[instance.GroupKey]struct{}{},
		deletedBy:  map[instance.GroupKey]audit.Request{},
	}
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	var err error
	if s.content, err = s.object.read(ctx); err != nil {
		return nil, err
	}
	next, err := s.content.keepDropped(accepted, c)
	if err != nil {
		return nil, err
	}
	if s.object.etag == "" {
		s.content, s.deferred = next, len(next.groups) > 0
	}
	if err := s.apply(ctx, c, next, nil); err != nil {
		return nil, err
	}
	return s, nil
}

// Check returns the error of Open if c cannot be put in force, which wraps a
// *config.InvalidError, or if the groups cannot be read. It changes nothing.
func Check(ctx context.Context, accepted, c *config.Config, store storage.Store) error {
	o := object{store: store, key: storage.GroupsKey(c.Shard.ID)}
	content, err := o.read(ctx)
	if err != nil {
		return err
	}
	if content, err = content.keepDropped(accepted, c); err != nil {
		return err
	}
	_, _, _, err = content.mergeValid(c, o.key, nil)
	return err
}

// Config returns the current configuration.
func (s *Store) Config() *config.Config {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.config
}

// Get returns false when the group does not exist.
func (s *Store) Get(key instance.GroupKey) (*Group, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	group, found := s.groups[key]
	return group, found
}

// Keys returns the keys of the groups of all tenants, in order.
func (s *Store) Keys() []instance.GroupKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Keys(s.groups), instance.GroupKey.Compare)
}

// Upsert creates or changes a group and returns it once the change is stored. It does not
// write a change again that is already stored. changed reports whether the merged group
// differs from before. The error is an *InvalidError, a *RestrictedError, a *StaleError or an
// error of the storage. An error means that nothing has changed, except that after an error
// of the storage other than storage.ErrConflict the change may become visible after a
// restart.
func (s *Store) Upsert(ctx context.Context, key instance.GroupKey, change Change) (group *Group, changed bool, err error) {
	if err := validateRequest(key, change.Revision, change.Replaces); err != nil {
		return nil, false, err
	}
	r := &request{ctx: ctx, key: key, request: requestOf(ctx, change.Revision), plan: func(current edit, before *Group) (edit, *Group, error) {
		retired, err := current.upserted(key, change)
		if err != nil {
			s.setRefused(key)
			return edit{}, nil, err
		}
		_, static := s.config.Groups[key.Tenant][key.Group]
		next := current.group.with(change, static)
		after, err := merge(s.config, key, next)
		if err != nil {
			return edit{}, nil, err
		}
		if static {
			next.WhenDropped = asDynamic(s.config, after)
		}
		return edit{group: next, retired: retired}, after, validate(s.config, change, before, after)
	}}
	s.do(r) //nolint:contextcheck // the request has ctx
	return r.group, r.changed, r.err
}

// Delete removes the stored settings of a group: a static group returns to its configured
// settings, and a dynamic group ceases to exist. It succeeds for a group that does not exist,
// which is deleted from then on. revision is the revision of the object whose group is
// deleted, nil if the client sends no revision; later changes from this object are older.
// changed and the errors are as in Upsert.
func (s *Store) Delete(ctx context.Context, key instance.GroupKey, revision *Revision) (changed bool, err error) {
	if err := validateRequest(key, revision, nil); err != nil {
		return false, err
	}
	r := &request{ctx: ctx, key: key, deletion: true, request: requestOf(ctx, revision), plan: func(current edit, before *Group) (edit, *Group, error) {
		next, err := current.deleted(key, revision)
		if err != nil {
			return edit{}, nil, err
		}
		if _, static := s.config.Groups[key.Tenant][key.Group]; next.group == nil && !static {
			next.mark = markOfDeleted(s.config, current.mark, before)
			return next, nil, nil
		}
		after, err := merge(s.config, key, next.group)
		return next, after, err
	}}
	s.do(r) //nolint:contextcheck // the request has ctx
	return r.changed, r.err
}

// MissingError means that the storage has lost the object with the groups of a shard:
// there are instances of dynamic groups, and no object. Without it the server would treat
// these groups as deleted.
type MissingError struct {
	// Shard is the id of the shard.
	Shard string
	// Groups are the groups that the object must have had, in order.
	Groups []instance.GroupKey
}

// namedGroups is how many groups an error names.
const namedGroups = 3

// Error names the object and what an administrator can do.
func (e *MissingError) Error() string {
	var names []string
	for _, key := range e.Groups[:min(namedGroups, len(e.Groups))] {
		names = append(names, key.String())
	}
	if more := len(e.Groups) - namedGroups; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("the storage has no object %s, although there are instances of groups that are not in the configuration (%s): "+
		"restore the object from a backup, or run nstance-admin shard reset-groups --shard %s if there is none",
		storage.GroupsKey(e.Shard), strings.Join(names, ", "), e.Shard)
}

// CheckPresent returns a *MissingError if the storage had no object although groups have
// instances that the configuration does not have. Only a stored request creates such a group,
// so the object was lost. Otherwise it stores the groups that Open has converted.
func (s *Store) CheckPresent(ctx context.Context, groups []instance.GroupKey) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if s.object.etag != "" {
		return nil
	}
	unknown := slices.DeleteFunc(slices.Clone(groups), func(key instance.GroupKey) bool {
		_, found := s.Get(key)
		return found
	})
	if len(unknown) == 0 && s.deferred {
		if err := s.object.write(ctx, s.content); err != nil {
			return fmt.Errorf("store the groups: %w", err)
		}
		s.deferred = false
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.SortFunc(unknown, instance.GroupKey.Compare)
	return &MissingError{Shard: s.Config().Shard.ID, Groups: slices.Compact(unknown)}
}

// Reset stores that a shard has no dynamic groups. It is an error if the storage already has
// the object with the groups of the shard.
func Reset(ctx context.Context, store storage.Store, shard string) error {
	key := storage.GroupsKey(shard)
	_, err := store.Create(ctx, key, []byte("{}\n"))
	if errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("the storage has the object %s, which is not changed", key)
	}
	if err != nil {
		return fmt.Errorf("create the object %s: %w", key, err)
	}
	return nil
}
