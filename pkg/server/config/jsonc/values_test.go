// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package jsonc

import (
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"504h": 504 * time.Hour, "21d": 504 * time.Hour, "1.5s": 1500 * time.Millisecond, "1h30m": 90 * time.Minute,
		"0": 0, "0s": 0, "0d": 0, "106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q is %s with error %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "d", "5", "-1s", "-1d", "+1d", "1.5d", "1d12h", "1d ", "21 d", "1D", "1w", "106752d", "9223372036854775808d", "300000000h",
	} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is %s, want an error", text, got)
		}
	}
}
