// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
)

// call is a request of a test.
type call func(ctx context.Context, s *Store, key instance.GroupKey) error

// upsertOf returns a request from a generation of an object. An empty uid stands for a
// client without revisions.
func upsertOf(uid string, generation int64, size int32) call {
	return replacing("", 0, uid, generation, size)
}

// replacing is upsertOf with the decision to replace a revision.
func replacing(otherUID string, otherGeneration int64, uid string, generation int64, size int32) call {
	return func(ctx context.Context, s *Store, key instance.GroupKey) error {
		change := Change{Size: size, Revision: revisionOf(uid, generation), Replaces: revisionOf(otherUID, otherGeneration)}
		if key == dynamic {
			change.Template = "worker"
		}
		_, _, err := s.Upsert(ctx, key, change)
		return err
	}
}

func deleteOf(uid string, generation int64) call {
	return func(ctx context.Context, s *Store, key instance.GroupKey) error {
		_, err := s.Delete(ctx, key, revisionOf(uid, generation))
		return err
	}
}

func revisionOf(uid string, generation int64) *Revision {
	if uid == "" {
		return nil
	}
	return &Revision{UID: uid, Generation: generation}
}

// none describes a group without a stored state.
const none = "none"

// revisionStep is a call and the state after it: size and revision of the group, or none, and
// the number of writes.
type revisionStep struct {
	call   call
	stale  bool
	group  string
	writes int
}

var revisionTests = map[string][]revisionStep{
	"a later generation is accepted, an earlier one is not": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("u", 4, 40), true, "50 of u/5", 0},
		{upsertOf("u", 6, 60), false, "60 of u/6", 1},
		{upsertOf("u", 5, 50), true, "60 of u/6", 0},
	},
	"the same generation again is written only if it differs": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("u", 5, 50), false, "50 of u/5", 0},
		{upsertOf("u", 5, 51), false, "51 of u/5", 1},
	},
	"a later generation with the same settings is stored": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("u", 6, 50), false, "50 of u/6", 1},
	},
	"a client without revisions is never stale, and keeps the revision": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("", 0, 40), false, "40 of u/5", 1},
		{upsertOf("u", 4, 45), true, "40 of u/5", 0},
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
	},
	"a group without a revision gets one": {
		{upsertOf("", 0, 40), false, "40 of none", 1},
		{upsertOf("u", 1, 40), false, "40 of u/1", 1},
	},
	"another object replaces the first one for good": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("v", 1, 10), false, "10 of v/1", 1},
		{upsertOf("u", 6, 60), true, "10 of v/1", 0},
		{upsertOf("v", 2, 20), false, "20 of v/2", 1},
	},
	"two objects that alternate end with one owner": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("v", 1, 10), false, "10 of v/1", 1},
		{upsertOf("u", 5, 50), true, "10 of v/1", 0},
		{upsertOf("v", 1, 10), false, "10 of v/1", 0},
		{upsertOf("u", 6, 60), true, "10 of v/1", 0},
		{upsertOf("v", 2, 20), false, "20 of v/2", 1},
		{upsertOf("u", 7, 70), true, "20 of v/2", 0},
	},
	"a deleted group stays deleted for its object": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{deleteOf("u", 6), false, none, 1},
		{upsertOf("u", 5, 50), true, none, 0},
		{upsertOf("u", 7, 50), true, none, 0},
		{deleteOf("u", 6), false, none, 0},
		{upsertOf("v", 1, 10), false, "10 of v/1", 1},
		{upsertOf("u", 7, 50), true, "10 of v/1", 0},
	},
	"a late deletion of the first object leaves the group of the second": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("v", 1, 10), false, "10 of v/1", 1},
		{deleteOf("u", 6), false, "10 of v/1", 0},
	},
	"a deletion by an earlier generation is refused": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{deleteOf("u", 4), true, "50 of u/5", 0},
		{deleteOf("u", 5), false, none, 1},
	},
	"a deletion by an object that was never sent deletes for both": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{deleteOf("v", 1), false, none, 1},
		{upsertOf("u", 6, 60), true, none, 0},
		{upsertOf("v", 1, 10), true, none, 0},
		{deleteOf("u", 7), false, none, 0},
		{deleteOf("v", 1), false, none, 0},
	},
	"an object is deleted before it is sent": {
		{deleteOf("u", 2), false, none, 1},
		{upsertOf("u", 1, 10), true, none, 0},
	},
	"a group without a revision is deleted": {
		{upsertOf("", 0, 40), false, "40 of none", 1},
		{deleteOf("u", 2), false, none, 1},
		{upsertOf("u", 1, 10), true, none, 0},
	},
	"a group that a client without revisions creates again is not deleted": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{deleteOf("u", 6), false, none, 1},
		{upsertOf("", 0, 40), false, "40 of none", 1},
		{deleteOf("u", 6), false, "40 of none", 0},
		{upsertOf("u", 5, 50), true, "40 of none", 0},
		{replacing("u", 0, "u", 5, 50), false, "50 of u/5", 1},
	},
	"a client without revisions deletes, and the object may create again": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{deleteOf("", 0), false, none, 1},
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
	},
	"an older generation replaces the one that it names, and no other": {
		{upsertOf("u", 9, 90), false, "90 of u/9", 1},
		{replacing("u", 8, "u", 5, 50), true, "90 of u/9", 0},
		{replacing("v", 9, "u", 5, 50), true, "90 of u/9", 0},
		{replacing("u", 9, "u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("u", 6, 60), false, "60 of u/6", 1},
		{replacing("u", 9, "u", 5, 50), true, "60 of u/6", 0},
	},
	"a replaced object replaces the one that it names, and no other": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("v", 1, 10), false, "10 of v/1", 1},
		{replacing("u", 5, "u", 5, 50), true, "10 of v/1", 0},
		{replacing("v", 2, "u", 5, 50), true, "10 of v/1", 0},
		{replacing("v", 1, "u", 5, 50), false, "50 of u/5", 1},
		// Now v is retired, and u is not.
		{upsertOf("v", 2, 20), true, "50 of u/5", 0},
		{upsertOf("u", 6, 60), false, "60 of u/6", 1},
	},
	"an object that was accepted by decision is no longer retired": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{upsertOf("v", 1, 10), false, "10 of v/1", 1},
		{replacing("v", 1, "u", 5, 50), false, "50 of u/5", 1},
		{deleteOf("", 0), false, none, 1},
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
	},
	"a deleted group is created again by decision": {
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
		{deleteOf("u", 6), false, none, 1},
		{replacing("v", 5, "u", 4, 40), true, none, 0},
		{replacing("u", 0, "u", 4, 40), false, "40 of u/4", 1},
		{upsertOf("u", 5, 50), false, "50 of u/5", 1},
	},
	"a decision that is not needed changes nothing": {
		{replacing("u", 9, "v", 1, 10), false, "10 of v/1", 1},
		{replacing("u", 9, "v", 2, 20), false, "20 of v/2", 1},
	},
}

// TestRevisions runs each sequence on a dynamic and on a static group, with and without
// a restart after each call.
func TestRevisions(t *testing.T) {
	for name, steps := range revisionTests {
		for _, key := range []instance.GroupKey{dynamic, main} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/restart=%t", name, key.Group, restart), func(t *testing.T) {
					runRevisionSteps(t, key, restart, steps)
				})
			}
		}
	}
}

func runRevisionSteps(t *testing.T, key instance.GroupKey, restart bool, steps []revisionStep) {
	store := newFaultyStore(t)
	s := open(t, store)
	absent := describeGroup(s, key)
	for n, step := range steps {
		before, object := store.writes, readObject(t, store)
		err := step.call(t.Context(), s, key)
		if _, stale := errors.AsType[*StaleError](err); stale != step.stale || err != nil && !stale {
			t.Fatalf("step %d: got error %v, want stale %t", n, err, step.stale)
		}
		want := step.group
		if want == none {
			want = absent
		}
		assert.Equal(t, want, describeGroup(s, key), "the group after step %d", n)
		assert.Equal(t, step.writes, store.writes-before, "writes of step %d", n)
		if step.stale {
			assert.Equal(t, object, readObject(t, store), "the object after step %d", n)
		}
		if restart {
			s = open(t, store)
			assert.Equal(t, want, describeGroup(s, key), "the group after a restart after step %d", n)
		}
	}
}

// describeGroup returns size and revision of a group.
func describeGroup(s *Store, key instance.GroupKey) string {
	group, found := s.Get(key)
	if !found {
		return none
	}
	if group.Revision == nil {
		return fmt.Sprintf("%d of none", group.Size)
	}
	return fmt.Sprintf("%d of %s", group.Size, group.Revision)
}

// A static group that the configuration drops keeps the revision, and the other way
// round.
func TestRevisionOfAGroupThatBecomesDynamic(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	require.NoError(t, upsertOf("u", 5, 50)(t.Context(), s, main))
	reconfigure(t, s, newConfigWith(nil))
	assert.Equal(t, "50 of u/5", describeGroup(s, main))
	s = openWith(t, store, newConfigWith(nil))
	assert.Error(t, upsertOf("u", 4, 40)(t.Context(), s, main))
	reconfigure(t, s, newConfig())
	assert.Error(t, upsertOf("u", 4, 40)(t.Context(), s, main))
	assert.Equal(t, "50 of u/5", describeGroup(s, main))
}

// The retired uids of one tenant do not affect another.
func TestRetiredUIDsAreOfATenant(t *testing.T) {
	s := open(t, newStorage(t))
	require.NoError(t, deleteOf("u", 1)(t.Context(), s, dynamic))
	upsert(t, s, instance.GroupKey{Tenant: "other", Group: "dynamic"}, Change{Settings: Settings{Template: "worker"}, Revision: revisionOf("u", 1)})
	assert.Error(t, upsertOf("u", 1, 1)(t.Context(), s, dynamic))
}

// If there are too many retired uids, only the oldest is forgotten.
func TestRetiredUIDsAreBounded(t *testing.T) {
	store := newStorage(t)
	uids := make([]string, maxRetired)
	for n := range uids {
		uids[n] = fmt.Sprintf("%q", fmt.Sprintf("uid-%d", n))
	}
	createObject(t, store, `{"retired_uids": {"default": [`+strings.Join(uids, ",")+`]}}`)
	s := open(t, store)
	require.NoError(t, deleteOf("u", 1)(t.Context(), s, dynamic))
	assert.Len(t, *s.content.retired["default"], maxRetired)
	s = open(t, store)
	for _, uid := range []string{"u", "uid-1", fmt.Sprintf("uid-%d", maxRetired-1)} {
		assert.Error(t, upsertOf(uid, 1, 1)(t.Context(), s, dynamic), uid)
	}
	assert.NoError(t, upsertOf("uid-0", 1, 1)(t.Context(), s, dynamic))
}

func TestStaleErrorNamesBothRevisions(t *testing.T) {
	own := Revision{UID: "u", Generation: 5}
	for want, stored := range map[string]*Revision{
		"group default/dynamic: the request has generation 5 of object u, but the group has the newer generation 9":                               {UID: "u", Generation: 9},
		"group default/dynamic: the request has generation 5 of object u, which was replaced by object v: the group has generation 1 of that one": {UID: "v", Generation: 1},
		"group default/dynamic: the request has generation 5 of object u, whose group was deleted":                                                nil,
	} {
		assert.EqualError(t, &StaleError{Group: dynamic, Revision: own, Stored: stored}, want)
	}
}

func TestMalformedRevisions(t *testing.T) {
	long := strings.Repeat("u", maxIDLength+1)
	for want, change := range map[string]Change{
		"revision.uid: Required value":                {Revision: &Revision{Generation: 1}},
		"revision.uid: Invalid value":                 {Revision: &Revision{UID: long}},
		"revision.generation: Invalid value: -1":      {Revision: &Revision{UID: "u", Generation: -1}},
		"replaces.uid: Required value":                {Revision: &Revision{UID: "u"}, Replaces: &Revision{}},
		"revision: Required value: must be set toget": {Replaces: &Revision{UID: "u"}},
	} {
		store := newStorage(t)
		_, _, err := open(t, store).Upsert(t.Context(), main, change)
		if _, invalid := errors.AsType[*InvalidError](err); !invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if object := readObject(t, store); object.ETag != "" {
			t.Errorf("%s: was written: %s", want, object.Data)
		}
	}
	_, err := open(t, newStorage(t)).Delete(t.Context(), main, &Revision{})
	if _, invalid := errors.AsType[*InvalidError](err); !invalid {
		t.Errorf("a deletion gives %v", err)
	}
}

// The requests of one write are compared with each other, in their order.
func TestRevisionsWithinABatch(t *testing.T) {
	b := newBatchTest(t)
	want := func(do call, stale bool) {
		b.call(func() {
			if _, got := errors.AsType[*StaleError](do(t.Context(), b.Store, dynamic)); got != stale {
				t.Errorf("stale is %t, want %t", got, stale)
			}
		})
	}
	want(upsertOf("u", 9, 90), false)
	want(upsertOf("u", 5, 50), true)
	want(deleteOf("u", 5), true)
	want(deleteOf("u", 9), false)
	want(upsertOf("u", 10, 100), true)
	want(upsertOf("v", 1, 10), false)
	want(deleteOf("u", 10), false)
	want(upsertOf("v", 1, 11), false)
	b.next()
	b.finish(nil) // blocks forever if there is a third write
	assert.Equal(t, "11 of v/1", describeGroup(b.Store, dynamic))
	b.wantStored()
}

// If the change that a refusal, or a success without effect, is due to was not stored, the
// result is an error of the storage: the change has not happened.
func TestRefusalsDependOnTheWrite(t *testing.T) {
	failure := errors.New("disk full")
	b := newBatchTest(t)
	other := keyOf(1)
	wantFailure := func(do func() error) {
		b.call(func() {
			if err := do(); !errors.Is(err, failure) {
				t.Errorf("got error %v, want %v", err, failure)
			}
		})
	}
	wantFailure(func() error { return deleteOf("u", 2)(t.Context(), b.Store, dynamic) })
	wantFailure(func() error { return upsertOf("u", 1, 1)(t.Context(), b.Store, dynamic) })
	// The uid is retired for the whole tenant.
	wantFailure(func() error { return upsertOf("u", 1, 1)(t.Context(), b.Store, other) })
	wantFailure(func() error { return deleteOf("u", 2)(t.Context(), b.Store, other) })
	b.next()
	b.finish(failure)
	assert.Nil(t, b.content.retired["default"])

	// The object was not deleted.
	b.calls.Go(func() {
		if err := upsertOf("u", 1, 10)(t.Context(), b.Store, dynamic); err != nil {
			t.Error(err)
		}
	})
	<-b.store.begun
	b.finish(nil)
	assert.Equal(t, "10 of u/1", describeGroup(b.Store, dynamic))
	b.wantStored()
}
