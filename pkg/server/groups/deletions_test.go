// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// lost is a group that no object has.
var lost = instance.GroupKey{Tenant: "default", Group: "lost"}

func newDynamic(size int32) Change {
	return Change{Settings: Settings{Template: "worker"}, Size: size}
}

func TestDeletionsAreRemembered(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	upsert(t, s, dynamic, newDynamic(1))
	assert.False(t, s.Deleted(dynamic))
	for _, key := range []instance.GroupKey{dynamic, lost} {
		changed, err := s.Delete(t.Context(), key, nil)
		require.NoError(t, err)
		assert.True(t, changed, "the deletion of %s", key)
		changed, err = s.Delete(t.Context(), key, nil)
		require.NoError(t, err)
		assert.False(t, changed, "the second deletion of %s", key)
	}
	s = open(t, store)
	assert.Equal(t, []instance.GroupKey{dynamic, lost}, s.DeletedGroups())
	assert.True(t, s.Deleted(lost))

	upsert(t, s, dynamic, newDynamic(1))
	require.NoError(t, s.ForgetDeleted(t.Context(), []instance.GroupKey{dynamic, lost}))
	for range 2 {
		assert.False(t, s.Deleted(dynamic))
		assert.False(t, s.Deleted(lost))
		assert.NotNil(t, get(t, s, dynamic))
		s = open(t, store)
	}
}

// The mark of a group with a drain timeout of its own contains the timeout.
func TestDeletedGroupWithItsOwnDrainTimeoutIsForgotten(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	c := newConfig()
	delete(c.Groups["default"], main.Group)
	require.NoError(t, s.Reconfigure(t.Context(), c))
	_, err := s.Delete(t.Context(), main, nil)
	require.NoError(t, err)
	_, own := s.DeletedDrainTimeout(main)
	require.True(t, own)
	require.NoError(t, s.ForgetDeleted(t.Context(), []instance.GroupKey{main}))
	assert.Empty(t, s.DeletedGroups())
	assert.Empty(t, openWith(t, store, c).DeletedGroups())
}

// If the uid of a request belongs to a group that was deleted before, the request is still a
// deletion, even if the object of the groups has no such group.
func TestDeletionOfLostGroupByRetiredUID(t *testing.T) {
	s := open(t, newStorage(t))
	revision := &Revision{UID: "u", Generation: 1}
	for range 2 {
		_, err := s.Delete(t.Context(), lost, revision)
		require.NoError(t, err)
		assert.True(t, s.Deleted(lost))
		require.NoError(t, s.ForgetDeleted(t.Context(), []instance.GroupKey{lost}))
	}
}

func TestStaticGroupIsNotDeleted(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	_, err := s.Delete(t.Context(), dynamic, nil)
	require.NoError(t, err)
	c := newConfig()
	c.Groups["default"]["dynamic"] = c.Groups["default"]["plain"]
	require.NoError(t, s.Reconfigure(t.Context(), c))
	assert.False(t, s.Deleted(dynamic))
	_, err = s.Delete(t.Context(), dynamic, nil)
	require.NoError(t, err)
	assert.False(t, s.Deleted(dynamic))
	assert.Empty(t, openWith(t, store, c).DeletedGroups())
}

func TestRequestConfirmsGroup(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	change := newDynamic(2)
	change.Revision = &Revision{UID: "u", Generation: 3}
	upsert(t, s, dynamic, change)
	keys := []instance.GroupKey{dynamic, main, lost}
	require.NoError(t, s.MarkUnconfirmed(t.Context(), keys))
	for range 2 {
		assert.True(t, s.Unconfirmed(dynamic))
		assert.True(t, s.HidesRevision(dynamic))
		assert.True(t, s.Unconfirmed(main))
		assert.False(t, s.Unconfirmed(lost), "a group that does not exist")
		s = open(t, store)
	}

	older := change
	older.Revision = &Revision{UID: "u", Generation: 2}
	_, _, err := s.Upsert(t.Context(), dynamic, older)
	require.ErrorAs(t, err, new(*StaleError))
	assert.True(t, s.Unconfirmed(dynamic), "after a refused request")
	assert.False(t, s.HidesRevision(dynamic), "after a refused request")
	require.NoError(t, s.MarkUnconfirmed(t.Context(), keys))

	// The same request as before changes nothing but the mark.
	_, changed, err := s.Upsert(t.Context(), dynamic, change)
	require.NoError(t, err)
	assert.True(t, changed)
	changed, err = s.Delete(t.Context(), main, nil)
	require.NoError(t, err)
	assert.True(t, changed)
	for range 2 {
		assert.False(t, s.Unconfirmed(dynamic))
		assert.False(t, s.HidesRevision(dynamic))
		assert.False(t, s.Unconfirmed(main))
		s = open(t, store)
	}
	_, changed, err = s.Upsert(t.Context(), dynamic, change)
	require.NoError(t, err)
	assert.False(t, changed)
}

func TestMarksThatChangeNothingAreNotWritten(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	require.NoError(t, s.MarkUnconfirmed(t.Context(), []instance.GroupKey{lost}))
	require.NoError(t, s.ForgetDeleted(t.Context(), []instance.GroupKey{lost, main}))
	assert.Zero(t, store.writes)
	for range 2 {
		require.NoError(t, s.MarkUnconfirmed(t.Context(), []instance.GroupKey{main}))
	}
	assert.Equal(t, 1, store.writes)
}

func TestFailedMark(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	store.before = []error{assert.AnError}
	require.ErrorIs(t, s.MarkUnconfirmed(t.Context(), []instance.GroupKey{main}), assert.AnError)
	assert.False(t, s.Unconfirmed(main))
}

func TestUnknownMarkIsRejected(t *testing.T) {
	store := newStorage(t)
	createObject(t, store, `{"group_marks": {"default": {"dynamic": "other"}}}`)
	_, err := Open(t.Context(), nil, newConfig(), store)
	require.ErrorContains(t, err, "group_marks.default.dynamic")
}

func TestCheckPresent(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	require.NoError(t, s.CheckPresent(t.Context(), []instance.GroupKey{main, plain}), "static groups only")
	missing := new(MissingError)
	var keys []instance.GroupKey
	for _, name := range []string{"d", "c", "b", "a", "a"} {
		keys = append(keys, instance.GroupKey{Tenant: "default", Group: name})
	}
	require.ErrorAs(t, s.CheckPresent(t.Context(), append(keys, main)), &missing)
	assert.Len(t, missing.Groups, 4)
	for _, text := range []string{objectKey, "(default/a, default/b, default/c, 1 more)", "reset-groups --shard us-west-2a"} {
		assert.ErrorContains(t, missing, text)
	}
	require.NoError(t, Reset(t.Context(), store, "us-west-2a"))
	require.NoError(t, open(t, store).CheckPresent(t.Context(), keys))
	require.ErrorContains(t, Reset(t.Context(), store, "us-west-2a"), objectKey)
}

// The storage has lost the object, and the configuration no longer names its groups. An object
// without the other groups would hide that they are lost.
func TestTheObjectIsStoredOnlyIfNoGroupIsMissing(t *testing.T) {
	store := newStorage(t)
	s, err := Open(t.Context(), newConfig(), newConfigWith(nil), store)
	require.NoError(t, err)
	missing := new(MissingError)
	require.ErrorAs(t, s.CheckPresent(t.Context(), []instance.GroupKey{plain, dynamic}), &missing)
	assert.Equal(t, []instance.GroupKey{dynamic}, missing.Groups)
	_, err = store.Get(t.Context(), objectKey)
	require.ErrorIs(t, err, storage.ErrNotFound)
	require.NoError(t, s.CheckPresent(t.Context(), []instance.GroupKey{plain}))
	_, err = store.Get(t.Context(), objectKey)
	require.NoError(t, err)
}

func TestDelete(t *testing.T) {
	t.Run("a dynamic group is deleted", func(t *testing.T) {
		s := open(t, newStorage(t))
		upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
		if changed, err := s.Delete(t.Context(), dynamic, nil); !changed || err != nil {
			t.Errorf("changed %t, error %v", changed, err)
		}
		if group, found := s.Get(dynamic); found {
			t.Errorf("still exists: %+v", group)
		}
	})
	t.Run("a static group is as configured again", func(t *testing.T) {
		s := open(t, newStorage(t))
		before := get(t, s, main)
		upsert(t, s, main, Change{Size: 8, Settings: Settings{Vars: map[string]string{"a": "b"}}})
		if changed, err := s.Delete(t.Context(), main, nil); !changed || err != nil {
			t.Errorf("changed %t, error %v", changed, err)
		}
		if diff := cmp.Diff(before, get(t, s, main)); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	})
	t.Run("nothing stored of a static group", func(t *testing.T) {
		store := newStorage(t)
		if changed, err := open(t, store).Delete(t.Context(), main, nil); changed || err != nil {
			t.Errorf("changed %t, error %v", changed, err)
		}
		if object := readObject(t, store); object.ETag != "" {
			t.Errorf("was written: %s", object.Data)
		}
	})
	t.Run("a malformed key", func(t *testing.T) {
		_, err := open(t, newStorage(t)).Delete(t.Context(), instance.GroupKey{Tenant: "default", Group: "A"}, nil)
		if !errors.As(err, new(*InvalidError)) {
			t.Errorf("got %v, want an InvalidError", err)
		}
	})
}
