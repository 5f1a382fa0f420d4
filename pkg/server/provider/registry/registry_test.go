// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registry

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryProviderIsDocumented(t *testing.T) {
	document, err := os.ReadFile("../../../../docs/server-reference.md")
	require.NoError(t, err)
	for name := range Providers {
		if !strings.Contains(string(document), "\n| `"+name+"` | ") {
			t.Errorf("provider %s is not in the table of docs/server-reference.md", name)
		}
	}
}
