// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identifier_test

import (
	"testing"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/base/identifier/identifiertest"
)

func TestValidate(t *testing.T) {
	for _, c := range identifiertest.Cases {
		err := identifier.Validate(c.Value)
		if got := err == nil; got != c.Valid {
			t.Errorf("Validate(%q): got error %v, want valid=%t", c.Value, err, c.Valid)
		}
	}
}

func FuzzValidate(f *testing.F) {
	for _, c := range identifiertest.Cases {
		f.Add(c.Value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if identifier.Validate(value) != nil {
			return
		}
		if len(value) == 0 || len(value) > identifier.MaxLength {
			t.Errorf("accepted %q of length %d", value, len(value))
		}
		for i := range len(value) {
			c := value[i]
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				t.Errorf("accepted %q with byte %q", value, c)
			}
			if c == '-' && (i == 0 || i == len(value)-1 || value[i-1] == '-') {
				t.Errorf("accepted %q with a misplaced hyphen", value)
			}
		}
	})
}
