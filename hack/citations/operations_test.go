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
var published = regexp.MustCompile(`(?m)^\s*(?:const )?(?:[rR]eason|Condition)[A-Z]\w* *= "([A-Z]\w+)"|"((?:nstance_(?:operator|server)|marekvs_operator)_\w+)"`)

// publishers are folders of programs, and the documents that explain what these publish.
var publishers = []struct{ folders, documents []string }{
	{[]string{"pkg/apis/infrastructure", "pkg/operator", "pkg/server"}, []string{"docs/operations.md", "docs/server.md"}},
	{[]string{"pkg/apis/marekvs", "pkg/marekvs"}, []string{"docs/marekvs.md"}},
}

// options are the files with the flags of programs, and the documents that explain them.
var options = map[string][]string{
	"pkg/operator/options.go":           {"docs/operations.md", "docs/server.md"},
	"pkg/controller/election/timing.go": {"docs/operations.md"},

	"pkg/marekvs/operator/options.go": {"docs/marekvs.md"},
}

func read(t *testing.T, names []string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		text.Write(data)
	}
	return text.String()
}

// TestOperationsDocument expects that the documents explain what the programs publish.
func TestOperationsDocument(t *testing.T) {
	for file, documents := range options {
		text := read(t, documents)
		flags := flag.FindAllStringSubmatch(read(t, []string{file}), -1)
		if len(flags) < 3 {
			t.Errorf("only %d flags were found in %s, the pattern is out of date", len(flags), file)
		}
		for _, match := range flags {
			if !strings.Contains(text, "`--"+match[1]+"`") {
				t.Errorf("flag --%s is in none of %v", match[1], documents)
			}
		}
	}
	found := 0
	for _, p := range publishers {
		text := read(t, p.documents)
		for _, folder := range p.folders {
			found += checkPublished(t, filepath.Join("../..", folder), text, p.documents)
		}
	}
	if found < 50 {
		t.Errorf("only %d conditions, reasons and metrics were found, the pattern is out of date", found)
	}
}

// checkPublished expects everything that a folder publishes in text, and returns how much
// that is.
func checkPublished(t *testing.T, folder, text string, documents []string) int {
	t.Helper()
	found := 0
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
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
			if !strings.Contains(text, "`"+word+"`") {
				t.Errorf("%s: %s is in none of %v", name, word, documents)
			}
		}
		return nil
	})
	require.NoError(t, err)
	return found
}
