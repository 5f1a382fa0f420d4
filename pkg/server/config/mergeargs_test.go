// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestMergeArgs(t *testing.T) {
	tests := []struct {
		name   string
		layers []string
		want   string
	}{
		{"no layer", nil, `null`},
		{"layers without members", []string{`{}`, `null`}, `null`},
		{"one layer", []string{`{"a": {"b": [1]}}`}, `{"a": {"b": [1]}}`},
		{"members are added", []string{`{"a": 1}`, `{"b": 2}`, `{"c": 3}`}, `{"a": 1, "b": 2, "c": 3}`},
		{"the last layer wins", []string{`{"a": 1}`, `{"a": 2}`, `{"a": "3"}`}, `{"a": "3"}`},
		{"objects are merged, however deep", []string{`{"a": {"b": {"c": 1, "d": 1}}}`, `{"a": {"b": {"d": 2}, "e": 2}}`}, `{"a": {"b": {"c": 1, "d": 2}, "e": 2}}`},
		{"arrays are replaced", []string{`{"a": [1, 2, {"b": 1}]}`, `{"a": [{"c": 1}]}`}, `{"a": [{"c": 1}]}`},
		{"an object is replaced by something else", []string{`{"a": {"b": 1}}`, `{"a": "x"}`}, `{"a": "x"}`},
		{"something else is replaced by an object", []string{`{"a": "x"}`, `{"a": {"b": 1}}`}, `{"a": {"b": 1}}`},
		{"null is a value", []string{`{"a": {"b": 1}, "c": 1}`, `{"a": null}`}, `{"a": null, "c": 1}`},
		{"an object without members is one", []string{`{"a": "x"}`, `{"a": {}}`}, `{"a": {}}`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var layers, unchanged []map[string]any
			for _, layer := range tc.layers {
				layers = append(layers, decode(t, layer))
				unchanged = append(unchanged, decode(t, layer))
			}
			got := MergeArgs(layers...)
			if diff := cmp.Diff(decode(t, tc.want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// A change of the result changes no layer.
			scribble(got)
			if diff := cmp.Diff(unchanged, layers); diff != "" {
				t.Errorf("the layers are changed (-want +got):\n%s", diff)
			}
		})
	}
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var value map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &value))
	return value
}

// scribble changes every object in value that is in no array.
func scribble(value map[string]any) {
	for _, member := range value {
		if object, ok := member.(map[string]any); ok {
			scribble(object)
		}
	}
	if value != nil {
		value["scribbled"] = true
	}
}
