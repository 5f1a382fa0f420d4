// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package googlesecrets

import "testing"

func TestNames(t *testing.T) {
	for name, id := range map[string]string{
		"ca.key": "ca_2Ekey", "plain-1": "plain-1", "tokens/database.json": "tokens_2Fdatabase_2Ejson", "a_b": "a_5Fb", "ü": "_C3_BC",
	} {
		if got := encode(name); got != id {
			t.Errorf("%q is %q, want %q", name, got, id)
		}
		if got, valid := decode(id); got != name || !valid {
			t.Errorf("%q is the name %q, %t, want %q", id, got, valid, name)
		}
	}
	for _, id := range []string{"a_", "a_2", "a_2e", "a_41", "a__b", "a_xx"} {
		if name, valid := decode(id); valid {
			t.Errorf("%q is the name %q", id, name)
		}
	}
}
