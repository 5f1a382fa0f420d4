// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFieldsOfALaterVersionAreKept when this server changes the group, another one, or the
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
