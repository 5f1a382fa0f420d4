// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
