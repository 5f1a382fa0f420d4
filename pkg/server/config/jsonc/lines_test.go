// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package jsonc

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLines(t *testing.T) {
	lines := NewLines([]byte(`{
		// "a": 1
		"a": {"b": 1,
			"c": [
				"x", /* y */
				{"d":
					2},
			],
			"e.f": {"g": 1},
			"e": {
				"f": 1},
			"labels": {"example.com/x[0]": 1,
				"tag:a": 1},
		},
		"twice": 1,
		"twice": 2,
	}`))
	require.NotNil(t, lines)
	for path, want := range map[string]int{
		"":                          1,
		"missing":                   1,
		"a":                         3,
		"a.b":                       3,
		"a.c":                       4,
		"a.c[0]":                    5,
		"a.c[1]":                    6,
		"a.c[1].d":                  6,
		"a.c[2]":                    4,
		"a.c[x]":                    4,
		"a.c[1].missing":            6,
		"a.missing.too":             3,
		"a.e.f.g":                   9,
		"a.e":                       10,
		"a.labels.example.com/x[0]": 12,
		"a.labels[tag:a]":           13,
		"a.labels[tag:b]":           12,
		"twice":                     16,
		"aa":                        1,
	} {
		assert.Equal(t, want, lines.Of(path), path)
	}
	assert.Nil(t, NewLines([]byte(`{"a": }`)))
}
