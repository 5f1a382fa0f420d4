// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestDocumentedMetadata: the table of docs/providers.md has what an instance stores, and no
// more.
func TestDocumentedMetadata(t *testing.T) {
	spec := providertest.MetadataSpec(t)
	api := &API{shard: testShard}
	description, err := newIdentity(testShard, spec).description()
	require.NoError(t, err)
	stored, found := parseDescription(description)
	require.True(t, found)
	names := append(providertest.MetadataNames(labelPrefix, api.labels(spec, nil)), providertest.JSONNames(t, stored)...)
	assert.ElementsMatch(t, providertest.DocumentedMetadata(t, Name), slices.Compact(slices.Sorted(slices.Values(names))))
}
