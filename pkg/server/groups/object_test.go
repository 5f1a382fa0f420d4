// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
)

// plainJSON returns the value that the text of c encodes.
func plainJSON(c content) map[string]any {
	fields := map[string]any{}
	for tenant, groups := range c.groups {
		fields[tenant] = groups
	}
	if len(c.retired) > 0 {
		fields["retired_uids"] = c.retired
	}
	if len(c.marks) > 0 {
		fields["group_marks"] = c.marks
	}
	return fields
}

// TestEncodeIsMarshalIndent checks that the text equals the text of json.MarshalIndent after
// every change, and that the encoder forgets deleted groups.
func TestEncodeIsMarshalIndent(t *testing.T) {
	keyOf := func(tenant, group string) instance.GroupKey {
		return instance.GroupKey{Tenant: tenant, Group: group}
	}
	full := &stored{
		Settings:    Settings{Template: "<a&b>", SubnetPools: []string{"x", "y"}, Vars: map[string]string{"b": "1", "a": "\"\n"}},
		RemoveFirst: []string{"i-1"},
		Rotation:    &RotationGrant{UpToDate: 2},
		Replace:     []string{"i-2"},
		Revision:    &Revision{UID: "u", Generation: 5},
		Declared:    &Settings{},
		Args:        map[string]any{"deep": map[string]any{"list": []any{1, "2"}}, "empty": map[string]any{}},
		WhenDropped: &stored{Size: 3},
	}
	steps := []struct {
		name   string
		change func(content) content
	}{
		{"empty", func(c content) content { return c }},
		{"a group", func(c content) content { return c.with(keyOf("default", "b"), &stored{Size: 1}) }},
		{"a group before it", func(c content) content { return c.with(keyOf("default", "a"), full) }},
		{"another tenant", func(c content) content { return c.with(keyOf("also", "b"), full) }},
		{"a changed group", func(c content) content { return c.with(keyOf("default", "b"), &stored{Size: 2}) }},
		{"nothing changed", func(c content) content { return c }},
		{"a tenant without groups", func(c content) content {
			c.groups["empty"] = map[string]*stored{}
			return c
		}},
		{"retired uids", func(c content) content {
			return c.apply(keyOf("default", "b"), edit{group: c.get(keyOf("default", "b")), retired: &retiredUIDs{"u", "<v>"}})
		}},
		{"retired uids of another tenant, without groups", func(c content) content {
			return c.apply(keyOf("zone", "b"), edit{retired: &retiredUIDs{"w"}})
		}},
		{"other retired uids", func(c content) content {
			return c.apply(keyOf("default", "b"), edit{group: c.get(keyOf("default", "b")), retired: c.retired["default"].with("x")})
		}},
		{"no retired uids of one tenant", func(c content) content { return c.apply(keyOf("zone", "b"), edit{}) }},
		{"a mark", func(c content) content {
			return c.apply(keyOf("default", "old"), edit{mark: markDeleted, retired: c.retired["default"]})
		}},
		{"another mark of another tenant", func(c content) content {
			return c.apply(keyOf("also", "b"), edit{group: c.get(keyOf("also", "b")), mark: markUnconfirmed})
		}},
		{"a mark is removed", func(c content) content {
			return c.apply(keyOf("also", "b"), edit{group: c.get(keyOf("also", "b"))})
		}},
		{"a deleted group", func(c content) content { return c.with(keyOf("default", "b"), nil) }},
		{"a deleted group created as another one", func(c content) content { return c.with(keyOf("default", "b"), full) }},
		{"a quoted name", func(c content) content { return c.with(keyOf("default", "\"<"), full) }},
		{"deleted groups", func(content) content { return content{} }},
	}
	e, c := &encoder{}, content{}
	for _, step := range steps {
		c = step.change(c)
		want, err := json.MarshalIndent(plainJSON(c), "", "  ")
		require.NoError(t, err)
		got, err := e.encode(c)
		require.NoError(t, err)
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-json +encoder):\n%s", step.name, diff)
		}
		if len(e.groups) != len(c.keys()) {
			t.Errorf("%s: the encoder has %d groups, want %d", step.name, len(e.groups), len(c.keys()))
		}
		decoded, err := decode(got)
		require.NoError(t, err)
		again, err := (&encoder{}).encode(decoded)
		require.NoError(t, err)
		if diff := cmp.Diff(string(got), string(again)); diff != "" {
			t.Errorf("%s (-encoded +decoded and encoded again):\n%s", step.name, diff)
		}
	}
}

// TestEncodeErrors checks that a group that cannot be encoded is named.
func TestEncodeErrors(t *testing.T) {
	c := content{groups: map[string]map[string]*stored{"default": {"dynamic": {Args: map[string]any{"invalid": func() {}}}}}}
	e := &encoder{}
	for range 2 {
		text, err := e.encode(c)
		if want := "encode group " + dynamic.String() + ": json: unsupported type: func()"; text != nil || err == nil || err.Error() != want {
			t.Errorf("got %q, error %v, want %s", text, err, want)
		}
	}
}

// TestFieldsOfALaterVersionAreKept when this server changes the group, another group, or the
// content beside them.
func TestFieldsOfALaterVersionAreKept(t *testing.T) {
	store := newStorage(t)
	createObject(t, store, `{
		"default": {"dynamic": {"template": "worker", "size": 4, "min_size": 2, "zones": {"a": [1, 2]}}},
		"future_field": {"a": {"b": true}}
	}`)
	s := open(t, store)
	require.EqualValues(t, 4, get(t, s, dynamic).Size)
	upsert(t, s, dynamic, Change{Size: 5, Settings: Settings{Vars: map[string]string{"c": "<d>"}}})
	upsert(t, s, main, Change{Size: 7})
	_, err := s.Delete(t.Context(), main, nil)
	require.NoError(t, err)
	s = open(t, store)
	upsert(t, s, dynamic, Change{Size: 6})

	var stored struct {
		Default map[string]map[string]any
		Future  map[string]any `json:"future_field"`
	}
	require.NoError(t, json.Unmarshal(readObject(t, store).Data, &stored))
	require.Equal(t, map[string]any{"a": map[string]any{"b": true}}, stored.Future)
	require.Equal(t, map[string]any{
		"template": "worker", "size": 6.0, "vars": map[string]any{"c": "<d>"},
		"min_size": 2.0, "zones": map[string]any{"a": []any{1.0, 2.0}},
	}, stored.Default["dynamic"])
}

// TestFormatOfALaterVersion is refused, and the object is not changed.
func TestFormatOfALaterVersion(t *testing.T) {
	store := newStorage(t)
	const object = `{"format_version": 2, "tenants": []}`
	createObject(t, store, object)
	_, err := Open(t.Context(), nil, newConfig(), store)
	require.ErrorContains(t, err, "groups/")
	require.ErrorContains(t, err, "has format version 2, and this server reads versions up to 1")
	require.Equal(t, object, string(readObject(t, store).Data))
}

func TestTheFirstFormatIsNotWritten(t *testing.T) {
	store := newStorage(t)
	createObject(t, store, `{"format_version": 1, "default": {"dynamic": {"template": "worker", "size": 4}}}`)
	s := open(t, store)
	upsert(t, s, dynamic, Change{Size: 5})
	require.NotContains(t, string(readObject(t, store).Data), "format_version", "older servers reject it")
}

// TestAMistakeIsNoFieldOfALaterVersion if it leaves the size at its default.
func TestAMistakeIsNoFieldOfALaterVersion(t *testing.T) {
	store := newStorage(t)
	createObject(t, store, `{"default": {"dynamic": {"template": "worker", "szie": 4}}}`)
	_, err := Open(t.Context(), nil, newConfig(), store)
	require.ErrorContains(t, err, "size is missing, and there are unknown fields: [szie]")
}
