// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	osv       = `{"osv": {"id": "GO-2026-0001", "summary": "Something"}}`
	inModule  = `{"finding": {"osv": "GO-2026-0001", "fixed_version": "v1.2.0", "trace": [{"module": "example.com/a", "version": "v1.1.0", "function": "F"}]}}`
	inLibrary = `{"finding": {"osv": "GO-2026-0001", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "version": "v1.26.8", "function": "F"}]}}`
	notCalled = `{"finding": {"osv": "GO-2026-0001", "trace": [{"module": "example.com/a", "version": "v1.1.0"}]}}`
)

func TestRun(t *testing.T) {
	for _, tc := range []struct{ name, in, accepted, out, err string }{
		{name: "no vulnerability", in: `{"config": {}}` + osv, out: "b: 0 known vulnerabilities"},
		{name: "in a module", in: inModule + osv + inModule, out: "b: GO-2026-0001 in example.com/a@v1.1.0, fixed in v1.2.0: Something\nb: 1 known", err: "GO-2026-0001"},
		{name: "accepted", in: inModule, accepted: "# reasons\n\nGO-2026-0001 is not called\n", out: "accepted: GO-2026-0001"},
		{name: "in the standard library", in: inLibrary, out: "has 1 known vulnerabilities, build releases with Go 1.26.9 or later: GO-2026-0001\n"},
		{name: "not in the binary", in: notCalled, out: "b: 0 known"},
		{name: "nothing", err: "printed nothing"},
		{name: "half of it", in: `{"osv": {`, err: "read the output"},
		{name: "accepted without a reason", in: osv, accepted: "GO-2026-0001\n", err: "must be an id like"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			accepted := filepath.Join(t.TempDir(), "accepted.txt")
			if err := os.WriteFile(accepted, []byte(tc.accepted), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(strings.NewReader(tc.in), &out, "b", accepted)
			if !strings.Contains(out.String(), tc.out) {
				t.Errorf("printed %q, want %q", out.String(), tc.out)
			}
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}
