// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"fmt"
	"regexp"
	"testing"
)

func TestPackageCounterIgnoresOtherOutput(t *testing.T) {
	c := packageCounter{pattern: regexp.MustCompile(`^[\w.~/-]+$`)}
	for _, part := range []string{"internal/goarch\nk8s.io/ap", "i/core/v1\n# example.com/broken\n", "broken.go:1:2: undefined: x\nk8s.io/api/core/v1\ninco"} {
		if n, err := fmt.Fprint(&c, part); n != len(part) || err != nil {
			t.Fatalf("wrote %d bytes of %q, error %v", n, part, err)
		}
	}
	if got := c.count(); got != 2 {
		t.Errorf("counted %d packages, want 2", got)
	}
	if got, want := c.rest.String(), "# example.com/broken\nbroken.go:1:2: undefined: x\n"; got != want {
		t.Errorf("the other output is %q, want %q", got, want)
	}
}
