// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drainnote_test

import (
	"testing"
	"time"

	"nstance.dev/operator/pkg/base/drainnote"
)

func TestParseReadsWhatStringWrites(t *testing.T) {
	for _, note := range []drainnote.Note{
		{Shard: "us-west-2a", Instance: "knd1", Reason: "scale-down", DeleteAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		{Shard: "us-west-2a", Instance: "knd1", Reason: "config-drift"},
		{Shard: "a", Instance: "i"},
	} {
		got, ok := drainnote.Parse(note.String())
		if !ok || got != note {
			t.Errorf("Parse(%q) = %+v, %t, want %+v", note, got, ok, note)
		}
	}
}

func TestParseRejectsOtherTexts(t *testing.T) {
	for _, text := range []string{
		"",
		"the Pods have left, and shard a may delete instance i",
		"draining for the deletion of instance i on shard a, reason scale-down, at the latest at noon",
		"draining for the deletion of instance i on shard a",
	} {
		if note, ok := drainnote.Parse(text); ok {
			t.Errorf("Parse(%q) = %+v", text, note)
		}
	}
}
