// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package terminal

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func write(t testing.TB, parts ...string) string {
	t.Helper()
	var out strings.Builder
	w := NewWriter(&out)
	for _, part := range parts {
		n, err := w.Write([]byte(part))
		require.NoError(t, err)
		assert.Equal(t, len(part), n)
	}
	return out.String()
}

func TestControlCharactersAreEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"pool workers: größe 3 世界 🚀": "pool workers: größe 3 世界 🚀",
		"├─a\tb\n":                   "├─a\tb\n",
		"\x1b]0;title\a\x1b[2J":      `\u001b]0;title\u0007\u001b[2J`,
		"a\rb\b\x7f":                 `a\u000db\u0008\u007f`,
		"\u009b2J":                   `\u009b2J`,
		"\x9b2J":                     `\ufffd2J`,
		"\u202egnp.exe":              `\u202egnp.exe`,
		"\U000e0041":                 `\udb40\udc41`,
	} {
		assert.Equal(t, want, write(t, text), "%q", text)
	}
}

func TestACharacterMayBeInTwoWrites(t *testing.T) {
	text := "größe 世界 🚀 \u009b2J"
	for cut := range len(text) {
		assert.Equal(t, write(t, text), write(t, text[:cut], text[cut:]))
	}
	// A character that stays incomplete does not come to an end.
	assert.Equal(t, `a\ufffdb`, write(t, "a\xc2", "b"))
}

func TestLineIsOnALine(t *testing.T) {
	assert.Equal(t, `a b  c\u001b[A d`, Line("a\r\nb\t\nc\x1b[A\td"))
}

func TestEscapedJSONIsTheSame(t *testing.T) {
	value := "\x1b \x7f \u009b \u202e \U000e0041 ü"
	data, err := json.Marshal(value)
	require.NoError(t, err)
	var got string
	require.NoError(t, json.Unmarshal([]byte(write(t, string(data))), &got))
	assert.Equal(t, value, got)
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestAnErrorOfTheTerminalIsReturned(t *testing.T) {
	n, err := NewWriter(broken{}).Write([]byte("a"))
	require.ErrorContains(t, err, "broken pipe")
	assert.Zero(t, n)
}

func FuzzWriter(f *testing.F) {
	for _, seed := range []string{"a\x1b[31m", "\u009b", "\xe2\x82", "🚀", "\xff\xc2"} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		out := write(t, first, second)
		if !utf8.ValidString(out) {
			t.Errorf("%q is not UTF-8", out)
		}
		for _, r := range out {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
				t.Errorf("%q reaches the terminal", r)
			}
		}
		if whole := write(t, first+second); whole != out {
			t.Errorf("%q in two writes, %q in one", out, whole)
		}
	})
}
