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

	"nstance.dev/operator/pkg/server/config"
)

// wantFirst expects what is to go first of a group, and its size.
func wantFirst(t *testing.T, group *Group, size int32, ids ...string) {
	t.Helper()
	if group.Size != size || !slices.Equal(group.RemoveFirst, ids) {
		t.Errorf("%s has size %d, and first go %q, want %d and %q", group.Key, group.Size, group.RemoveFirst, size, ids)
	}
}

// TestRemoveFirstComesWithTheSize: whoever says a size says what goes first, if
// only nothing. Both are in one write, and one answer.
func TestRemoveFirstComesWithTheSize(t *testing.T) {
	store := &trouble{Store: newStorage(t)}
	s := open(t, store)
	steps := []struct {
		name    string
		change  Change
		want    []string
		writes  int
		changes bool
	}{
		{"a new group", Change{Template: "worker", Size: 3}, nil, 1, true},
		{"fewer, of which two are chosen", Change{Size: 1, RemoveFirst: []string{"b", "a"}}, []string{"b", "a"}, 1, true},
		{"the same again", Change{Size: 1, RemoveFirst: []string{"b", "a"}}, []string{"b", "a"}, 0, false},
		{"others, and the size stays", Change{Size: 1, RemoveFirst: []string{"a", "c"}}, []string{"a", "c"}, 1, true},
		{"in another order", Change{Size: 1, RemoveFirst: []string{"c", "a"}}, []string{"c", "a"}, 1, true},
		{"an operator that does not know of it", Change{Size: 1}, nil, 1, true},
		{"none, which is the same as not to know of it", Change{Size: 1, RemoveFirst: []string{}}, nil, 0, false},
	}
	for _, step := range steps {
		before := store.writes
		group, changed, err := s.Upsert(t.Context(), dynamic, step.change)
		if err != nil {
			t.Fatal(err)
		}
		wantFirst(t, group, step.change.Size, step.want...)
		if writes := store.writes - before; writes != step.writes || changed != step.changes {
			t.Errorf("%s: %d writes and changed %t, want %d and %t", step.name, writes, changed, step.writes, step.changes)
		}
		wantSame(t, s, store)
	}
	// Nothing is left for a server of before to stumble over.
	if content := string(readObject(t, store).Data); strings.Contains(content, "remove_first") {
		t.Errorf("stored is %s", content)
	}
}

// TestETagsStayWhatTheyAre: a new release tells of no change where there is none.
func TestETagsStayWhatTheyAre(t *testing.T) {
	group := signed(t, sample())
	if want := "f6a1ac75"; !strings.HasPrefix(group.ETag, want) {
		t.Errorf("the ETag of a group that names none is %s, want %s...", group.ETag, want)
	}
	named := sample()
	named.RemoveFirst = []string{"a"}
	if signed(t, named).ETag == group.ETag {
		t.Error("the ETag does not differ")
	}
}

func TestRemoveFirstOfAStaticGroup(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	configured := get(t, s, main).ETag
	wantFirst(t, upsert(t, s, main, Change{Size: 2, RemoveFirst: []string{"a"}}), 2, "a")
	upsert(t, s, plain, Change{Size: 1, RemoveFirst: []string{"b"}})
	wantSame(t, s, store)

	// Whether the configuration drops it while the server runs or while it does
	// not, it stays what it is, and comes back as that.
	reconfigure(t, s, newConfigWith(map[string]config.Group{"plain": {Template: "worker"}}))
	wantFirst(t, get(t, s, main), 2, "a")
	wantSame(t, s, store)
	s = openWith(t, store, newConfigWith(nil))
	wantFirst(t, get(t, s, plain), 1, "b")
	s = open(t, store)
	wantFirst(t, get(t, s, main), 2, "a")
	wantFirst(t, get(t, s, plain), 1, "b")

	// What was configured names none.
	if _, err := s.Delete(t.Context(), main); err != nil {
		t.Fatal(err)
	}
	wantFirst(t, get(t, s, main), 3)
	if etag := get(t, s, main).ETag; etag != configured {
		t.Errorf("the ETag is %s, want that of before, %s", etag, configured)
	}
	wantSame(t, s, store)
}

// TestADeletedGroupForgetsWhatGoesFirst, so that one that is made anew begins
// with none.
func TestADeletedGroupForgetsWhatGoesFirst(t *testing.T) {
	s := open(t, newStorage(t))
	upsert(t, s, dynamic, Change{Template: "worker", Size: 2, RemoveFirst: []string{"a"}})
	if _, err := s.Delete(t.Context(), dynamic); err != nil {
		t.Fatal(err)
	}
	wantFirst(t, upsert(t, s, dynamic, Change{Template: "worker", Size: 2}), 2)
}

func TestRemoveFirstThatIsRefused(t *testing.T) {
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
				t.Errorf("a refused change shows (-before +after):\n%s", diff)
			}
		})
	}
	s := open(t, newStorage(t))
	upsert(t, s, main, Change{Size: 1, RemoveFirst: many[:maxRemoveFirst]})
	upsert(t, s, main, Change{Size: 1, RemoveFirst: []string{strings.Repeat("a", 64)}})
}
