// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// declared matches names of declarations or files and the folder that has them, such as `plan` and
	// `live.go` in `pkg/operator`.
	declared = regexp.MustCompile("((?:`[A-Za-z][A-Za-z0-9_.]*`(?:,? and |, )?)+)\\s*(?:in|of) `((?:pkg|cmd|e2e|hack)/[a-z0-9_/-]+)`")
	// quoted matches one of these names.
	quoted = regexp.MustCompile("`([^`]+)`")
)

// TestDeclarationsInDocuments expects that the folders which documents name have what the documents say
// is in them: somebody who renames a function does not see who has named it.
func TestDeclarationsInDocuments(t *testing.T) {
	missing, checked, err := missingDeclarations(os.DirFS("../.."))
	require.NoError(t, err)
	assert.Empty(t, missing)
	assert.Greater(t, checked, 20)
}

// missingDeclarations returns the names in the documents of a tree that their folders do not have, and
// the number of names.
func missingDeclarations(tree fs.FS) (missing []string, checked int, err error) {
	documents, err := fs.Glob(tree, "*.md")
	if err != nil {
		return nil, 0, err
	}
	err = fs.WalkDir(tree, "docs", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && path.Ext(name) == ".md" {
			documents = append(documents, name)
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	for _, document := range documents {
		text, err := fs.ReadFile(tree, document)
		if err != nil {
			return nil, 0, err
		}
		// A list of names may be wrapped.
		for _, found := range declared.FindAllStringSubmatch(strings.Join(strings.Fields(string(text)), " "), -1) {
			for _, name := range quoted.FindAllStringSubmatch(found[1], -1) {
				checked++
				has, err := hasDeclaration(tree, found[2], name[1])
				if err != nil {
					return nil, 0, fmt.Errorf("look for %s of %s in %s: %w", name[1], document, found[2], err)
				}
				if !has {
					missing = append(missing, fmt.Sprintf("%s: %s has no %s", document, found[2], name[1]))
				}
			}
		}
	}
	return missing, checked, nil
}

// testName matches names that only files of tests have.
var testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]`)

// hasDeclaration reports whether a folder has a file of a name, or files with the last part of the
// name as a word, which are tests if the name is one.
func hasDeclaration(tree fs.FS, folder, name string) (bool, error) {
	file := path.Ext(name) == ".go"
	word := regexp.MustCompile(`\b` + regexp.QuoteMeta(name[strings.LastIndex(name, ".")+1:]) + `\b`)
	has := false
	err := fs.WalkDir(tree, folder, func(at string, _ fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file:
			has = has || path.Base(at) == name
			return nil
		case has || path.Ext(at) != ".go" || strings.HasSuffix(at, "_test.go") != testName.MatchString(name):
			return nil
		}
		data, err := fs.ReadFile(tree, at)
		has = err == nil && word.Match(data)
		return err
	})
	return has, err
}

func TestMissingDeclarations(t *testing.T) {
	tree := fstest.MapFS{
		"README.md":         {Data: []byte("`Run` in `pkg/a`, `gone.go` of `pkg/a`")},
		"docs/a.md":         {Data: []byte("- `plan`, `Options.Delay` and\n  `formerly` in\n  `pkg/a`; `a.go` in `pkg/a`")},
		"docs/b/c.md":       {Data: []byte("`tested` and `TestRun` in `pkg/a`, `kubectl` in a shell")},
		"pkg/a/a.go":        {Data: []byte("type Options struct {\n\tDelay int\n}\n\nfunc Run() { plan() }\n")},
		"pkg/a/b/plan.go":   {Data: []byte("func plan() {}\n")},
		"pkg/a/a_test.go":   {Data: []byte("func tested() {}\n\nfunc TestRun() {}\n")},
		"pkg/a/formerly.md": {Data: []byte("formerly")},
	}
	missing, checked, err := missingDeclarations(tree)
	require.NoError(t, err)
	assert.Equal(t, []string{"README.md: pkg/a has no gone.go", "docs/a.md: pkg/a has no formerly", "docs/b/c.md: pkg/a has no tested"}, missing)
	assert.Equal(t, 8, checked)
}
