// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tailscale/hujson"

	"nstance.dev/operator/pkg/server"
)

// sample is a part of a configuration in a document.
type sample struct {
	// of is the document with the configuration to which the part belongs.
	of string
	// in are the keys of the object to which the part belongs.
	in []string
	// without is what the document leaves out, and with what belongs there.
	without, with string
	// alone is true if the part replaces a value. Others are merged with it.
	alone bool
}

// ciphertext is longer than the key that it encrypts.
var ciphertext = "AQID" + strings.Repeat("A", 60)

// samples are the parts of configurations in each document, in their order.
var samples = map[string][]sample{
	"agent.md":     {{of: "aws.md", in: []string{"templates", "worker"}}, {of: "aws.md"}},
	"aws.md":       {{of: "aws.md"}, {of: "aws.md", in: []string{"shard"}}, {of: "aws.md", in: []string{"cluster", "secrets"}, without: "AQID…", with: ciphertext, alone: true}},
	"google.md":    {{of: "google.md"}, {of: "google.md", in: []string{"shard"}}},
	"on-demand.md": {{of: "shard.jsonc", in: []string{"templates", "worker"}}},
	"providers.md": {{of: "shard.jsonc", in: []string{"shard"}}},
	// The configuration has a file with the name, of another kind.
	"self-managed.md":     {{of: "aws.md", without: `"join.json"`, with: `"discovery.json"`}},
	"server-reference.md": {{of: "aws.md"}, {of: "aws.md", in: []string{"cluster", "secrets"}, without: "AQID…", with: ciphertext, alone: true}, {of: "aws.md"}},
	"server.md": {{of: "aws.md", in: []string{"templates", "worker"}}, {of: "aws.md", without: "/* fields of the provider */",
		with: `"target_group_arns": ["arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/web/0123456789abcdef"]`}},
}

// anyBlock matches a block of code, with or without a language.
var anyBlock = regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)\n *```$")

// TestEverySampleIsSilent: validate has nothing to say about any configuration in the documents, or
// about a configuration with any of the parts there.
func TestEverySampleIsSilent(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	silent(t, "shard.jsonc", configurationOf(t, "shard.jsonc"))
	configurations, parts := 1, 0
	require.NoError(t, filepath.WalkDir(docs, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		document, err := filepath.Rel(docs, path)
		require.NoError(t, err)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		known := samples[document]
		for _, match := range anyBlock.FindAllStringSubmatch(string(data), -1) {
			switch text := strings.TrimSpace(match[3]); {
			case strings.HasPrefix(text, `"`):
				title := fmt.Sprintf("%s: %s", document, text)
				if assert.NotEmpty(t, known, "the test does not know to which configuration a part belongs: %s", title) {
					silent(t, title, known[0].complete(t, text))
					known = known[1:]
					parts++
				}
			case strings.HasPrefix(text, "{") && strings.Contains(text, `"cluster":`):
				silent(t, document, text)
				configurations++
			}
		}
		assert.Empty(t, known, "parts that %s does not have", document)
		return nil
	}))
	assert.Equal(t, 4, configurations)
	assert.Equal(t, 15, parts)
}

// configurationOf returns the configuration in a document.
func configurationOf(t *testing.T, document string) string {
	t.Helper()
	if filepath.Ext(document) == ".md" {
		configurations := blocks(t, document, "jsonc")
		require.Len(t, configurations, 1)
		return configurations[0]
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", document))
	require.NoError(t, err)
	return string(data)
}

// complete returns the configuration with the part.
func (s sample) complete(t *testing.T, part string) string {
	t.Helper()
	if s.without != "" {
		require.Contains(t, part, s.without)
		part = strings.ReplaceAll(part, s.without, s.with)
	}
	whole := object(t, configurationOf(t, s.of))
	at := whole
	for _, key := range s.in {
		next, isObject := at[key].(map[string]any)
		require.True(t, isObject, "%s of %s", key, s.of)
		at = next
	}
	values := object(t, "{\n"+part+"\n}")
	if s.alone {
		maps.Copy(at, values)
	} else {
		merge(at, values)
	}
	text, err := json.Marshal(whole)
	require.NoError(t, err)
	return string(text)
}

// object reads an object with comments and commas at the end.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	standard, err := hujson.Standardize([]byte(text))
	require.NoError(t, err, text)
	var values map[string]any
	require.NoError(t, json.Unmarshal(standard, &values))
	return values
}

// merge sets the values of an object, and the values of the objects in it.
func merge(into, from map[string]any) {
	for key, value := range from {
		below, isObject := value.(map[string]any)
		if existing, has := into[key].(map[string]any); has && isObject {
			merge(existing, below)
			continue
		}
		into[key] = value
	}
}

// silent expects that validate only says that a configuration is valid.
func silent(t *testing.T, title, configuration string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(configuration), 0o600))
	var said strings.Builder
	if err := server.Validate(t.Context(), server.Options{}, path, &said); assert.NoError(t, err, title) {
		assert.Regexp(t, `^\S+: shard \S+ of cluster \S+ is valid\n$`, said.String(), title)
	}
}
