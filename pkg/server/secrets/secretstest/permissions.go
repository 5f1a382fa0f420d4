// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
)

// testPermissions compares the table of docs/server.md#keys with the calls of servers, and
// with those that only nstance-admin makes.
func testPermissions(t *testing.T, b Backend) {
	document, err := os.ReadFile("../../../../docs/server.md")
	require.NoError(t, err)
	row := regexp.MustCompile("(?m)^\\| `" + b.Provider + "` \\|.*\\|(.*)\\|$").FindSubmatch(document)
	require.NotNil(t, row)
	ofServers, ofAdmin, found := strings.Cut(string(row[1]), "for nstance-admin also")
	require.True(t, found)
	// A key of one's own is not part of the tests.
	ofAdmin, _, _ = strings.Cut(ofAdmin, "of a key of your own")

	s := b.Open("a")
	require.NoError(t, s.Create(t.Context(), storage.AuthoritySecret, []byte("first")))
	require.ErrorIs(t, s.Create(t.Context(), storage.AuthoritySecret, []byte("second")), storage.ErrConflict)
	_, err = s.Get(t.Context(), storage.AuthoritySecret)
	require.NoError(t, err)
	// Of two servers that create a secret at the same time, one adds a version that it has to
	// remove again, where the service has versions. A lost response looks the same.
	b.Faults.Set(Lost, 2, 1)
	_ = s.Create(t.Context(), storage.NonceSecret, []byte("first"))
	b.Faults.Set(Lost, 0, 0)
	servers := b.Faults.Permissions()
	assert.Equal(t, documentedPermissions(ofServers), servers, "of servers")

	require.NoError(t, s.Set(t.Context(), names[0], []byte("value")))
	require.NoError(t, s.Set(t.Context(), names[0], []byte("another")))
	_, err = s.List(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Delete(t.Context(), names[0]))
	var others []string
	for _, one := range b.Faults.Permissions() {
		if !slices.Contains(servers, one) {
			others = append(others, one)
		}
	}
	assert.Equal(t, documentedPermissions(ofAdmin), others, "of nstance-admin")
}

// documentedPermissions returns the permissions in a text, in order. A name that ends with a
// colon begins those after it.
func documentedPermissions(text string) []string {
	all := map[string]bool{}
	for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
		all[match[1]] = true
	}
	return slices.Sorted(maps.Keys(all))
}
