// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package puidv7

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// FuzzParse looks for a text that is parsed although it is not the canonical text of
// the id, or whose id is invalid.
func FuzzParse(f *testing.F) {
	for _, v := range vectors {
		f.Add(v.text)
		f.Add(strings.ToUpper(v.text))
	}
	f.Add("knc06bgm7733st2576nx5jht4ecj\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := Parse(text)
		if err != nil {
			if id != (ID{}) {
				t.Errorf("Parse(%q) returns %v and the error %v", text, id, err)
			}
			return
		}
		if got := id.String(); got != text {
			t.Errorf("Parse(%q) returns %q: not the canonical text", text, got)
		}
		if !strings.ContainsRune("048cgmrw", rune(text[Length-1])) {
			t.Errorf("Parse(%q) accepted a last character with padding bits", text)
		}
		if id.UUID.Version() != 7 || id.UUID.Variant() != uuid.RFC4122 {
			t.Errorf("Parse(%q) returns a UUID of version %d, variant %s", text, id.UUID.Version(), id.UUID.Variant())
		}
		checkRoundTrip(t, id)
	})
}

// FuzzString tests the other direction: the text of every UUID with version 7 is
// parsed, and sorts in the order of the bytes.
func FuzzString(f *testing.F) {
	for _, v := range vectors {
		u := uuid.MustParse(v.uuid)
		f.Add(u[:], u[:])
	}
	f.Add(make([]byte, 16), bytes.Repeat([]byte{0xff}, 16))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		first, second := version7(a), version7(b)
		checkRoundTrip(t, first)
		checkRoundTrip(t, second)
		want := bytes.Compare(first.UUID[:], second.UUID[:])
		if got := strings.Compare(first.String(), second.String()); got != want {
			t.Errorf("%s and %s compare as %d, their bytes as %d", first, second, got, want)
		}
		if got := strings.Compare(first.StorageKey(), second.StorageKey()); got != want {
			t.Errorf("%s and %s compare as %d, their bytes as %d", first.StorageKey(), second.StorageKey(), got, want)
		}
		if first.Time().Before(second.Time()) && want >= 0 {
			t.Errorf("%s is older than %s and sorts after it", first, second)
		}
	})
}

// version7 returns an id with version 7 for any bytes.
func version7(data []byte) ID {
	id := ID{Prefix: "knc"}
	copy(id.UUID[:], data)
	id.UUID[6] = id.UUID[6]&0x0f | 0x70
	id.UUID[8] = id.UUID[8]&0x3f | 0x80
	return id
}

func checkRoundTrip(t *testing.T, id ID) {
	t.Helper()
	if again, err := Parse(id.String()); err != nil || again != id {
		t.Errorf("Parse(%q) returns %v, %v, want %v", id.String(), again, err, id)
	}
	// The storage key contains the same id.
	text, prefix := id.StorageKey()[:36], id.StorageKey()[37:]
	if u, err := uuid.Parse(text); err != nil || u != id.UUID || prefix != id.Prefix {
		t.Errorf("the storage key of %v is %q", id, id.StorageKey())
	}
}
