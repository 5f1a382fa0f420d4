// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

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
// instances that the configuration does not have. Only a request that is stored creates
// such a group, so the object was lost. Otherwise it stores what Open has converted.
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

// Reset stores that a shard has no dynamic groups. It is an error if the storage has the
// object with the groups of the shard.
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
