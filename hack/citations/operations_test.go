// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// flag matches the flags of the operator.
var flag = regexp.MustCompile(`flags\.\w+Var\([^"]*"([a-z-]+)"`)

// published matches what users see and look up: types and reasons of conditions and
// events, and metrics.
var published = regexp.MustCompile(`(?m)^\s*(?:const )?(?:[rR]eason|Condition)[A-Z]\w* *= "([A-Z]\w+)"|"(nstance_(?:operator|server)_\w+)"`)

// TestOperationsDocument expects that docs/operations.md and docs/server.md explain
// what the operator and the server publish.
func TestOperationsDocument(t *testing.T) {
	root := "../.."
	var documents strings.Builder
	for _, name := range []string{"docs/operations.md", "docs/server.md"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		documents.Write(data)
	}
	options, err := os.ReadFile(filepath.Join(root, "pkg/operator/options.go"))
	require.NoError(t, err)
	flags := flag.FindAllStringSubmatch(string(options), -1)
	if len(flags) < 10 {
		t.Errorf("only %d flags were found, the pattern is out of date", len(flags))
	}
	for _, match := range flags {
		if !strings.Contains(documents.String(), "`--"+match[1]+"`") {
			t.Errorf("flag --%s is in neither docs/operations.md nor docs/server.md", match[1])
		}
	}
	found := 0
	for _, folder := range []string{"pkg/apis", "pkg/controller", "pkg/server"} {
		err = filepath.WalkDir(filepath.Join(root, folder), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			for _, match := range published.FindAllStringSubmatch(string(data), -1) {
				word := match[1] + match[2]
				found++
				if !strings.Contains(documents.String(), "`"+word+"`") {
					t.Errorf("%s: %s is in neither docs/operations.md nor docs/server.md", name, word)
				}
			}
			return nil
		})
		require.NoError(t, err)
	}
	if found < 50 {
		t.Errorf("only %d conditions, reasons and metrics were found, the pattern is out of date", found)
	}
}
