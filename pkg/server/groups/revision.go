// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
)

// maxRetired is the maximum number of retired uids of a tenant. A request that is
// older than as many deleted groups is no longer recognized.
const maxRetired = 1024

// Revision identifies the state of an operator's object that a request comes from. A request
// never changes a group if it is older than an accepted request (docs/protocol.md#revisions).
type Revision struct {
	// UID is the UID of the object. An object that was created again has another.
	UID string
	// Generation grows with each change of the object.
	Generation int64
}

// String returns UID/GENERATION.
func (r Revision) String() string { return fmt.Sprintf("%s/%d", r.UID, r.Generation) }

// MarshalText returns the stored text: it is short, because the object has a revision for
// every group.
func (r Revision) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the result of MarshalText.
func (r *Revision) UnmarshalText(text []byte) error {
	slash := bytes.LastIndexByte(text, '/')
	if slash < 0 {
		return fmt.Errorf("invalid revision %q: must be UID/GENERATION", text)
	}
	generation, err := strconv.ParseInt(string(text[slash+1:]), 10, 64)
	if err != nil {
		return fmt.Errorf("invalid generation of revision %q: %w", text, err)
	}
	r.UID, r.Generation = string(text[:slash]), generation
	return nil
}

// revision returns the revision of the last change, or nil. s may be nil.
func (s *stored) revision() *Revision {
	if s == nil {
		return nil
	}
	return s.Revision
}

// upserted returns the retired uids of the tenant after change, or a *StaleError if the
// change is older than the stored state.
func (e edit) upserted(key instance.GroupKey, change Change) (*retiredUIDs, error) {
	own, last := change.Revision, e.group.revision()
	if own == nil {
		return e.retired, nil
	}
	same := last != nil && last.UID == own.UID
	older := same && own.Generation < last.Generation || !same && e.retired.has(own.UID)
	if older && !change.replaces(last) {
		return nil, &StaleError{Group: key, Revision: *own, Stored: last}
	}
	retired := e.retired.without(own.UID)
	if last != nil && !same {
		retired = retired.with(last.UID)
	}
	return retired, nil
}

// replaces reports whether an administrator has decided to replace last, which may be nil, by
// the older revision of c.
func (c Change) replaces(last *Revision) bool {
	switch {
	case c.Replaces == nil:
		return false
	case last == nil:
		return c.Replaces.UID == c.Revision.UID
	default:
		return *c.Replaces == *last
	}
}

// deleted returns the stored state after a deletion, or a *StaleError. own is nil for a
// request without revision: it retires no uid, so that the object may create the group again.
// The group of a retired uid was deleted before, and if there is a group now, it comes from
// another object.
func (e edit) deleted(key instance.GroupKey, own *Revision) (edit, error) {
	last := e.group.revision()
	switch {
	case own == nil:
		return edit{retired: e.retired}, nil
	case last != nil && last.UID == own.UID:
		if own.Generation < last.Generation {
			return e, &StaleError{Group: key, Revision: *own, Stored: last}
		}
		return edit{retired: e.retired.with(own.UID)}, nil
	case e.retired.has(own.UID):
		return e, nil
	case last != nil:
		return edit{retired: e.retired.with(last.UID).with(own.UID)}, nil
	default:
		return edit{retired: e.retired.with(own.UID)}, nil
	}
}

// retiredUIDs are the uids of objects whose groups were deleted or belong to another
// object now, oldest first. It is immutable; nil is the empty list.
type retiredUIDs []string

func (u *retiredUIDs) has(uid string) bool { return u != nil && slices.Contains(*u, uid) }

// with returns u with uid as the newest uid.
func (u *retiredUIDs) with(uid string) *retiredUIDs {
	var next retiredUIDs
	if u = u.without(uid); u != nil {
		next = append(next, *u...)
	}
	next = append(next, uid)
	next = next[max(0, len(next)-maxRetired):]
	return &next
}

// without returns u itself if it does not have uid.
func (u *retiredUIDs) without(uid string) *retiredUIDs {
	if !u.has(uid) {
		return u
	}
	next := slices.DeleteFunc(slices.Clone(*u), func(other string) bool { return other == uid })
	if len(next) == 0 {
		return nil
	}
	return &next
}

// validateRequest returns an InvalidError unless key and both revisions, which may be
// nil, are well-formed.
func validateRequest(key instance.GroupKey, revision, replaces *Revision) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	problems := validateRevision(revisionPath, revision)
	problems = append(problems, validateRevision(replacesPath, replaces)...)
	if replaces != nil && revision == nil {
		problems = append(problems, field.Required(revisionPath, "must be set together with replaces"))
	}
	if len(problems) > 0 {
		return &InvalidError{Group: key, Problems: problems}
	}
	return nil
}

// validateRevision limits the stored size of a revision, which may be nil.
func validateRevision(path *field.Path, r *Revision) field.ErrorList {
	if r == nil {
		return nil
	}
	problems := validateUID(path.Child("uid"), r.UID)
	if r.Generation < 0 {
		problems = append(problems, field.Invalid(path.Child("generation"), r.Generation, "must not be negative"))
	}
	return problems
}

func validateUID(path *field.Path, uid string) field.ErrorList {
	switch {
	case uid == "":
		return field.ErrorList{field.Required(path, "must be the uid of an object")}
	case len(uid) > maxIDLength:
		return field.ErrorList{field.Invalid(path, uid[:maxIDLength]+"...", fmt.Sprintf("must have at most %d characters", maxIDLength))}
	default:
		return nil
	}
}
