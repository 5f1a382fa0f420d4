// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		file, text string
		want       []string
	}{
		"resolves":                     {"a.go", "// See docs/protocol.md#instance-ids and docs/protocol.md.", nil},
		"no such file":                 {"a.go", "package a\n\n// See docs/other.md.", []string{"a.go:3: docs/other.md: no such file"}},
		"no such file in a folder":     {"a.go", "// See docs/decisions/0001-other.md.", []string{"a.go:1: docs/decisions/0001-other.md: no such file"}},
		"no such heading":              {"a.proto", "// See docs/protocol.md#other.", []string{"a.proto:1: docs/protocol.md#other: no such heading"}},
		"heading in a code block":      {"a.sh", "# docs/protocol.md#comment", []string{"a.sh:1: docs/protocol.md#comment: no such heading"}},
		"second heading of a name":     {"a.yaml", "# docs/protocol.md#errors-1", nil},
		"document of another project":  {"a.go", "// https://example.com/docs/other.md", nil},
		"document that never was":      {"a.go", "// One rule (server document).", []string{`a.go:1: "server document" is no document of the tree`}},
		"over two lines":               {"a.go", "package a\n\n// One rule (wire\n// contract).", []string{`a.go:3: "wire contract" is no document of the tree`}},
		"decision":                     {"a.go", "// It stays (decision).", []string{`a.go:1: "(decision)" is no document of the tree`}},
		"link":                         {"docs/a.md", "[wire](protocol.md#errors), [self](#top), [web](https://example.com)\n\n# Top", nil},
		"link to nothing":              {"docs/a.md", "[wire](docs/protocol.md)", []string{"docs/a.md:1: link docs/protocol.md: no such file"}},
		"link to no heading":           {"docs/a.md", "text\n[self](#top)", []string{"docs/a.md:2: link #top: no such heading"}},
		"link in a code block":         {"docs/a.md", "```\n[x](y)\n```", nil},
		"path of the tree":             {"docs/a.md", "`docs/protocol.md`, `pkg/NAME`, `pkg/*/a.go`", nil},
		"path that does not exist":     {"docs/a.md", "the package `pkg/other`", []string{"docs/a.md:1: pkg/other: no such file"}},
		"pattern in code":              {"docs/a.md", "`[a-z](x)`", nil},
		"file that is not looked into": {"testdata/a.golden", "server document", nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, "docs/protocol.md", "# Protocol\n\n## Instance `ids`\n\n```sh\n# comment\n```\n\n## Errors\n\n## [Errors](x)\n")
			write(t, root, test.file, test.text)
			problems, err := newChecker(root).check([]string{test.file})
			require.NoError(t, err)
			var got []string
			for _, p := range problems {
				got = append(got, fmt.Sprintf("%s:%d: %s", p.file, p.line, p.text))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	name = path.Join(root, name)
	require.NoError(t, os.MkdirAll(path.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
}

// TestEveryDocumentIsInTheIndex expects that README.md of each folder of docs lists the
// documents of the folder, and the README.md of each folder below it.
func TestEveryDocumentIsInTheIndex(t *testing.T) {
	missing, err := missingInIndex(os.DirFS("../.."))
	require.NoError(t, err)
	assert.Empty(t, missing)
}

// missingInIndex returns the documents of docs that the README.md of their folder does not
// link to.
func missingInIndex(tree fs.FS) (missing []string, err error) {
	err = fs.WalkDir(tree, "docs", func(name string, entry fs.DirEntry, err error) error {
		extension := path.Ext(name)
		if err != nil || entry.IsDir() || name == "docs/README.md" || extension != ".md" && extension != ".jsonc" {
			return err
		}
		folder := path.Dir(name)
		if path.Base(name) == "README.md" {
			folder = path.Dir(folder)
		}
		index, err := fs.ReadFile(tree, path.Join(folder, "README.md"))
		if err != nil {
			return err
		}
		for _, found := range link.FindAllStringSubmatch(string(index), -1) {
			target, _, _ := strings.Cut(found[1], "#")
			if path.Join(folder, target) == name {
				return nil
			}
		}
		missing = append(missing, name)
		return nil
	})
	return missing, err
}

func TestMissingInIndex(t *testing.T) {
	tree := fstest.MapFS{
		"docs/README.md":       {Data: []byte("[a](a.md#heading), [more](more/README.md), [c](more/c.md)")},
		"docs/a.md":            {},
		"docs/b.md":            {},
		"docs/image.png":       {},
		"docs/more/README.md":  {Data: []byte("[d](d.md), [b](../b.md)")},
		"docs/more/c.md":       {},
		"docs/more/d.md":       {},
		"docs/other/README.md": {},
	}
	missing, err := missingInIndex(tree)
	require.NoError(t, err)
	assert.Equal(t, []string{"docs/b.md", "docs/more/c.md", "docs/other/README.md"}, missing)
}

// flag matches the flags of the operator.
var flag = regexp.MustCompile(`flags\.\w+Var\([^"]*"([a-z-]+)"`)

// published matches names that users look up: types and reasons of conditions and events,
// and metrics.
var published = regexp.MustCompile(`(?m)^\s*(?:const )?(?:[rR]eason|Condition)[A-Z]\w* *= "([A-Z]\w+)"|"((?:nstance_(?:operator|server)|marekvs_operator)_\w+)"`)

// publishers maps folders of programs to the documents that explain the names that they
// publish.
var publishers = []struct{ folders, documents []string }{
	{[]string{"pkg/apis/infrastructure", "pkg/operator", "pkg/server"}, []string{"docs/reference.md", "docs/certificates.md", "docs/drains.md", "docs/server.md", "docs/server-reference.md"}},
	{[]string{"pkg/apis/marekvs", "pkg/marekvs"}, []string{"docs/marekvs.md"}},
}

// options maps files with flags of programs to the documents that explain the flags.
var options = map[string][]string{
	"pkg/operator/options.go":             {"docs/reference.md"},
	"pkg/controller/election/election.go": {"docs/reference.md"},

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

// TestOperationsDocument expects the documents to explain the names that the programs
// publish.
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

// checkPublished expects all published names of a folder in text, and returns their number.
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
