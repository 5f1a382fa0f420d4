// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The document has a row for each case, and for nothing else.
func TestCasesAreDocumented(t *testing.T) {
	document, err := os.ReadFile("../../../../docs/providers.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(document), "\n## Tests\n")
	require.True(t, found)
	_, rows, found := strings.Cut(section, "\n|---|---|---|---|---|---|---|\n")
	require.True(t, found)
	rows, _, _ = strings.Cut(rows, "\n\n")
	var documented, names []string
	for row := range strings.SplitSeq(rows, "\n") {
		documented = append(documented, strings.TrimSpace(strings.Split(row, "|")[1]))
	}
	for _, c := range cases {
		names = append(names, c.name)
	}
	for _, c := range remoteCases {
		names = append(names, c.name)
	}
	assert.ElementsMatch(t, names, documented)
}
