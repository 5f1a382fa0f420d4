// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
)

// wantFirst expects the size of a group and the ids in remove_first.
func wantFirst(t *testing.T, group *Group, size int32, ids ...string) {
	t.Helper()
	if group.Size != size || !slices.Equal(group.RemoveFirst, ids) {
		t.Errorf("%s has size %d, and remove_first %q, want %d and %q", group.Key, group.Size, group.RemoveFirst, size, ids)
	}
}

// TestRemoveFirstBelongsToTheSize checks that every change of the size replaces
// remove_first, even by nothing, in the same write.
func TestRemoveFirstBelongsToTheSize(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	steps := []struct {
		name    string
		change  Change
		want    []string
		writes  int
		changes bool
	}{
		{"a new group", Change{Settings: Settings{Template: "worker"}, Size: 3}, nil, 1, true},
		{"a smaller size and two ids", Change{Size: 1, RemoveFirst: []string{"b", "a"}}, []string{"b", "a"}, 1, true},
		{"the same again", Change{Size: 1, RemoveFirst: []string{"b", "a"}}, []string{"b", "a"}, 0, false},
		{"other ids with the same size", Change{Size: 1, RemoveFirst: []string{"a", "c"}}, []string{"a", "c"}, 1, true},
		{"in another order", Change{Size: 1, RemoveFirst: []string{"c", "a"}}, []string{"c", "a"}, 1, true},
		{"an operator that does not send the field", Change{Size: 1}, nil, 1, true},
		{"an empty list, which equals no field", Change{Size: 1, RemoveFirst: []string{}}, nil, 0, false},
	}
	for _, step := range steps {
		before := store.writes
		group, changed, err := s.Upsert(t.Context(), dynamic, step.change)
		require.NoError(t, err)
		wantFirst(t, group, step.change.Size, step.want...)
		if writes := store.writes - before; writes != step.writes || changed != step.changes {
			t.Errorf("%s: %d writes and changed %t, want %d and %t", step.name, writes, changed, step.writes, step.changes)
		}
		wantSame(t, s, store)
	}
	// Older servers must be able to read the object.
	if content := string(readObject(t, store).Data); strings.Contains(content, "remove_first") {
		t.Errorf("stored is %s", content)
	}
}

// TestETagsAreStable checks that a new release does not change the etags of
// unchanged groups.
func TestETagsAreStable(t *testing.T) {
	group := withHashes(t, sample())
	if want := "f6a1ac75"; !strings.HasPrefix(group.ETag, want) {
		t.Errorf("the ETag of a group that names none is %s, want %s...", group.ETag, want)
	}
	named := sample()
	named.RemoveFirst = []string{"a"}
	if withHashes(t, named).ETag == group.ETag {
		t.Error("the ETag does not differ")
	}
	declared := sample()
	declared.Declared = &Settings{Template: "worker"}
	if withHashes(t, declared).ETag == group.ETag {
		t.Error("the ETag of a group with a declaration does not differ")
	}
}

func TestRemoveFirstOfAStaticGroup(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	configured := get(t, s, main).ETag
	wantFirst(t, upsert(t, s, main, Change{Size: 2, RemoveFirst: []string{"a"}}), 2, "a")
	upsert(t, s, plain, Change{Size: 1, RemoveFirst: []string{"b"}})
	wantSame(t, s, store)

	// The group keeps its settings when the configuration drops it, whether the
	// server runs or not, and when it becomes static again.
	reconfigure(t, s, newConfigWith(map[string]config.Group{"plain": {Template: "worker"}}))
	wantFirst(t, get(t, s, main), 2, "a")
	wantSame(t, s, store)
	s = openWith(t, store, newConfigWith(nil))
	wantFirst(t, get(t, s, plain), 1, "b")
	s = open(t, store)
	wantFirst(t, get(t, s, main), 2, "a")
	wantFirst(t, get(t, s, plain), 1, "b")

	// The configuration sets none.
	_, err := s.Delete(t.Context(), main, nil)
	require.NoError(t, err)
	wantFirst(t, get(t, s, main), 3)
	if etag := get(t, s, main).ETag; etag != configured {
		t.Errorf("the ETag is %s, want the previous one, %s", etag, configured)
	}
	wantSame(t, s, store)
}

// TestDeletedGroupLosesRemoveFirst checks that a group that is created again
// starts without ids.
func TestDeletedGroupLosesRemoveFirst(t *testing.T) {
	s := open(t, newStorage(t))
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 2, RemoveFirst: []string{"a"}})
	_, err := s.Delete(t.Context(), dynamic, nil)
	require.NoError(t, err)
	wantFirst(t, upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 2}), 2)
}

func TestInvalidRemoveFirst(t *testing.T) {
	many := make([]string, maxRemoveFirst+1)
	for n := range many {
		many[n] = fmt.Sprintf("knd%026d", n)
	}
	tests := []struct {
		name string
		ids  []string
		want string
	}{
		{"an empty id", []string{"a", ""}, `remove_first[1]: Required value: must be the id of an instance`},
		{"an id that is too long", []string{strings.Repeat("a", 65)}, `remove_first[0]: Invalid value: "` + strings.Repeat("a", 64) + `...": must have at most 64 characters`},
		{"an id given twice", []string{"a", "b", "a"}, `remove_first[2]: Duplicate value: "a"`},
		{"too many", many, `remove_first: Too many: 10001: must have at most 10000 items`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			store := newStorage(t)
			s := open(t, store)
			upsert(t, s, main, Change{Size: 4})
			before, object := snapshot(t, s), readObject(t, store)
			_, changed, err := s.Upsert(t.Context(), main, Change{Size: 1, RemoveFirst: tc.ids})
			if _, invalid := errors.AsType[*InvalidError](err); !invalid || changed || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			// The size has not changed either.
			if diff := cmp.Diff(before, snapshot(t, s)); diff != "" || !cmp.Equal(object, readObject(t, store)) {
				t.Errorf("a rejected change is visible (-before +after):\n%s", diff)
			}
		})
	}
	s := open(t, newStorage(t))
	upsert(t, s, main, Change{Size: 1, RemoveFirst: many[:maxRemoveFirst]})
	upsert(t, s, main, Change{Size: 1, RemoveFirst: []string{strings.Repeat("a", 64)}})
}
