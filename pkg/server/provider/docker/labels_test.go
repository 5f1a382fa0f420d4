// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"

	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestDocumentedMetadata: the table of docs/providers.md has what an instance stores, and no
// more.
func TestDocumentedMetadata(t *testing.T) {
	shard := provider.Shard{ClusterID: "test", ID: "a", Region: "region", Zone: "zone"}
	labels := labelsOf(shard, providertest.MetadataSpec(t), arguments{})
	assert.Equal(t, providertest.DocumentedMetadata(t, Name), providertest.MetadataNames("nstance.dev/", labels))
}
