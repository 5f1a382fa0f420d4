// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// mark is stored for a group beside its settings, and says whether its instances may be
// terminated (docs/server.md#groups).
type mark string

const (
	// noMark is not stored.
	noMark mark = ""
	// markDeleted: the group was deleted. Without the mark, the group could not be
	// distinguished from a group that is missing in an older backup of the object.
	markDeleted mark = "deleted"
	// markUnconfirmed: the stored settings may be older than the settings that an operator
	// has sent.
	markUnconfirmed mark = "unconfirmed"
)

// marks are the marks by tenant and group. They are immutable.
type marks map[string]map[string]mark

// markOfDeleted returns the mark of a group that is being deleted. before is the group, or
// nil. The instances drain as they would have done before.
func markOfDeleted(c *config.Config, current mark, before *Group) mark {
	switch {
	case before == nil && current.isDeleted():
		return current
	case before == nil || before.DrainTimeout == c.Shard.DefaultDrainTimeout:
		return markDeleted
	default:
		return deletedWith(before.DrainTimeout)
	}
}

// deletedWith returns the mark of a deleted group whose instances have their own drain
// timeout.
func deletedWith(timeout time.Duration) mark {
	return markDeleted + markSeparator + mark(timeout.String())
}

const markSeparator = ":"

// isDeleted reports whether m is markDeleted, with or without a drain timeout.
func (m mark) isDeleted() bool {
	kind, _, _ := strings.Cut(string(m), markSeparator)
	return mark(kind) == markDeleted
}

// drainTimeout returns the timeout of deletedWith.
func (m mark) drainTimeout() (time.Duration, bool) {
	_, text, found := strings.Cut(string(m), markSeparator)
	timeout, err := time.ParseDuration(text)
	return timeout, found && err == nil && timeout >= 0
}

// valid reports whether m can be stored.
func (m mark) valid() bool {
	_, hasTimeout := m.drainTimeout()
	return m == markDeleted || m == markUnconfirmed || m.isDeleted() && hasTimeout
}

func (m marks) get(key instance.GroupKey) mark { return m[key.Tenant][key.Group] }

// with returns a copy of m with next under key.
func (m marks) with(key instance.GroupKey, next mark) marks {
	if m.get(key) == next {
		return m
	}
	changed := maps.Clone(m)
	if changed == nil {
		changed = marks{}
	}
	tenant := maps.Clone(changed[key.Tenant])
	if tenant == nil {
		tenant = map[string]mark{}
	}
	if next != noMark {
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

// Deleted reports whether a group was deleted and has not been created again. The
// instances of a group that neither exists nor was deleted belong to a group that the
// storage has lost.
func (s *Store) Deleted(key instance.GroupKey) bool { return s.mark(key).isDeleted() }

// DeletedDrainTimeout returns how long the instances of a deleted group may take to drain,
// and false if the group had no drain timeout of its own.
func (s *Store) DeletedDrainTimeout(key instance.GroupKey) (time.Duration, bool) {
	return s.mark(key).drainTimeout()
}

// Unconfirmed reports whether the settings of a group may be older than the settings that an
// operator has sent. The next request for the group confirms them.
func (s *Store) Unconfirmed(key instance.GroupKey) bool { return s.mark(key) == markUnconfirmed }

func (s *Store) mark(key instance.GroupKey) mark {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.marks.get(key)
}

// HidesRevision reports whether clients must not see the revision of an unconfirmed group: an
// operator sends a group again if its revision is not the operator's own. An operator whose
// request was refused, because its object is older still, needs to see the revision.
func (s *Store) HidesRevision(key instance.GroupKey) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, refused := s.refused[key]
	return s.marks.get(key) == markUnconfirmed && !refused
}

// setRefused records that a request was refused as stale.
func (s *Store) setRefused(key instance.GroupKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marks.get(key) == markUnconfirmed {
		s.refused[key] = struct{}{}
	}
}

// DeletedGroups returns the groups for which Deleted is true, in order.
func (s *Store) DeletedGroups() []instance.GroupKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var keys []instance.GroupKey
	for tenant, groups := range s.marks {
		for group, value := range groups {
			if value.isDeleted() {
				keys = append(keys, instance.GroupKey{Tenant: tenant, Group: group})
			}
		}
	}
	slices.SortFunc(keys, instance.GroupKey.Compare)
	return keys
}

// MarkUnconfirmed stores that the settings of groups may be older than the settings that an
// operator has sent. It ignores groups that do not exist.
func (s *Store) MarkUnconfirmed(ctx context.Context, keys []instance.GroupKey) error {
	return s.changeMarks(ctx, func(changed marks) marks {
		for _, key := range keys {
			if _, found := s.Get(key); found {
				changed = changed.with(key, markUnconfirmed)
			}
		}
		return changed
	})
}

// ForgetDeleted removes the marks of deleted groups. The caller knows that they no longer
// have instances.
func (s *Store) ForgetDeleted(ctx context.Context, keys []instance.GroupKey) error {
	return s.changeMarks(ctx, func(changed marks) marks {
		for _, key := range keys {
			if changed.get(key).isDeleted() {
				changed = changed.with(key, noMark)
			}
		}
		return changed
	})
}

// changeMarks stores the result of change unless the marks stay the same.
func (s *Store) changeMarks(ctx context.Context, change func(marks) marks) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	next := s.content
	next.marks = change(next.marks)
	if equalMarks(next.marks, s.content.marks) {
		return nil
	}
	if err := s.object.write(ctx, next); err != nil {
		return fmt.Errorf("mark groups: %w", err)
	}
	s.content = next
	s.publish(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.deletedBy, func(key instance.GroupKey, _ audit.Request) bool { return !s.marks.get(key).isDeleted() })
	return nil
}

func equalMarks(a, b marks) bool {
	return maps.EqualFunc(a, b, maps.Equal)
}

func decodeMarks(data []byte) (marks, error) {
	var decoded marks
	if err := decodeStrictly(data, &decoded); err != nil {
		return nil, err
	}
	allowed := []mark{markDeleted, markDeleted + ":DURATION", markUnconfirmed}
	for tenant, groups := range decoded {
		for group, value := range groups {
			if !value.valid() {
				return nil, field.NotSupported(field.NewPath(marksKey, tenant, group), value, allowed)
			}
		}
	}
	return decoded, nil
}

// encodeMarks returns the text of marks, of which there are few.
func encodeMarks(m marks) ([]byte, error) {
	text, err := json.MarshalIndent(m, indent, indent)
	if err != nil {
		return nil, fmt.Errorf("encode the marks of groups: %w", err)
	}
	return text, nil
}
