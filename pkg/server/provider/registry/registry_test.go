// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registry

import (
	"os"
	"strings"
	"testing"
)

func TestEveryProviderIsDocumented(t *testing.T) {
	document, err := os.ReadFile("../../../../docs/server.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range Providers {
		if !strings.Contains(string(document), "\n| `"+name+"` | ") {
			t.Errorf("provider %s is not in the table of docs/server.md", name)
		}
	}
}
