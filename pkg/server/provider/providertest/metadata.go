// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// codeWords matches the names in a row of the table, which are code.
var codeWords = regexp.MustCompile("`([^`]+)`")

// DocumentedMetadata returns the names of the metadata that a provider stores, in the order
// of the table in docs/providers.md#metadata. Call it from a test in the folder of a
// provider.
func DocumentedMetadata(t *testing.T, name string) []string {
	t.Helper()
	document, err := os.ReadFile("../../../../docs/providers.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(document), "\n## Metadata\n")
	require.True(t, found, "docs/providers.md has no section Metadata")
	_, row, found := strings.Cut(section, "\n| `"+name+"` |")
	require.True(t, found, "the table has no row of %s", name)
	row, _, _ = strings.Cut(row, "\n")
	// The first column says where the metadata is stored.
	_, row, _ = strings.Cut(row, "|")
	var names []string
	for _, match := range codeWords.FindAllStringSubmatch(row, -1) {
		names = append(names, match[1])
	}
	return sorted(names)
}

// MetadataNames returns the keys of maps without a prefix, in order.
func MetadataNames(prefix string, all ...map[string]string) []string {
	var names []string
	for _, name := range all {
		for key := range name {
			names = append(names, strings.TrimPrefix(key, prefix))
		}
	}
	return sorted(names)
}

// JSONNames returns the names of all scalar values in the JSON of a value, in order.
func JSONNames(t *testing.T, value any) []string {
	t.Helper()
	data, err := json.Marshal(value)
	require.NoError(t, err)
	var object map[string]any
	require.NoError(t, json.Unmarshal(data, &object))
	var names []string
	for key, member := range object {
		if inner, ok := member.(map[string]any); ok {
			names = append(names, JSONNames(t, inner)...)
		} else {
			names = append(names, key)
		}
	}
	return sorted(names)
}

// sorted returns the names in order and without duplicates.
func sorted(names []string) []string {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// MetadataSpec returns a request in which all stored fields are set.
func MetadataSpec(t *testing.T) provider.Spec {
	t.Helper()
	return provider.Spec{
		ID: NewID(t), Kind: "knd", Template: "worker", Group: instance.GroupKey{Tenant: "default", Group: "workers"},
		CreatedAt: time.Now(), Origin: instance.Origin{OnDemand: true, IdempotencyKey: "key", InfraConfigHash: "hash"},
	}
}
