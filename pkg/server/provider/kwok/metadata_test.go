// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestDocumentedMetadata: the table of docs/providers.md has what a Node stores, and no more.
func TestDocumentedMetadata(t *testing.T) {
	const prefix = "nstance.dev/"
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		h := start(t, client, "a")
		s := providertest.MetadataSpec(t)
		s.Type, s.Subnet = instanceTypes["m7i.large"], "subnet"
		id := h.MustRun(s)
		node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
		require.NoError(t, err)
		stored := maps.Clone(node.Labels)
		maps.Copy(stored, node.Annotations)
		maps.DeleteFunc(stored, func(key, _ string) bool { return !strings.HasPrefix(key, prefix) })
		assert.Equal(t, providertest.DocumentedMetadata(t, kwok.Name), providertest.MetadataNames(prefix, stored))
	})
}
