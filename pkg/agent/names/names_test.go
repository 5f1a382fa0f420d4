// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package names

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "kubelet.server", "A-b_9", "-a", "a..b"} {
		assert.NoError(t, ValidateBase(name), name)
		assert.NoError(t, ValidateFile(name+".env"), name)
		assert.Error(t, ValidateFile(name+".sh"), name)
	}
	for _, name := range []string{"", ".", "..", ".env", "a/b.env", "/a.env", "../a.env", `a\b.env`, "a\n.env", "a\x00.env", "ä.env", "a*.env", strings.Repeat("a", 197) + ".env"} {
		assert.Error(t, ValidateFile(name), name)
	}
}

// FuzzValidateFile: an accepted name is that of one file directly in a folder.
func FuzzValidateFile(f *testing.F) {
	f.Add("a.env")
	f.Add("../a.env")
	f.Add("a/../b.key")
	f.Fuzz(func(t *testing.T, name string) {
		if ValidateFile(name) != nil {
			return
		}
		if strings.ContainsAny(name, "/\\\x00 ") || strings.HasPrefix(name, ".") || len(name) > 255 {
			t.Errorf("%q was accepted", name)
		}
	})
}
