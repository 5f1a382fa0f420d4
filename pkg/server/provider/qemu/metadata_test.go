// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestDocumentedMetadata: the table of docs/providers.md has what an instance stores, and no
// more.
func TestDocumentedMetadata(t *testing.T) {
	names := providertest.JSONNames(t, newIdentity(testShard, providertest.MetadataSpec(t)))
	assert.Equal(t, providertest.DocumentedMetadata(t, Name), names)
}
