// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package runbook

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

// required are the procedures that the document must have.
var required = []string{
	"A shard that is lost",
	"Replace a shard",
	"Change a static pool",
	"A control plane that was scaled away",
	"A certificate that has expired",
	"Replace the CA",
	"Rotate the CA",
	"Restore etcd",
	"Restore the storage of the servers",
	"Upgrade",
	"Renew the tokens of a workload cluster",
	"Uninstall",
	"Move from cloud auto-scaling groups",
	"Move a tenant",
	"A node of marekvs that is lost",
	"A volume of marekvs that is lost",
	"A volume claim of marekvs that was deleted",
	"A volume of marekvs that is full",
	"An update of marekvs that has stopped",
	"Another number of copies",
	"Restore a cluster of marekvs",
}

// The documents have every required procedure with blocks, the index lists it, and a test runs it. A procedure
// that is not required here has no test.
func TestEveryProcedureIsRunByATest(t *testing.T) {
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	sections, err := readDocuments(root)
	require.NoError(t, err)
	for _, heading := range required {
		found, err := find(sections, heading)
		if assert.NoError(t, err) {
			_, err = found.parse()
			assert.NoError(t, err)
		}
	}
	var marked []string
	for _, s := range sections {
		if s.isProcedure() {
			marked = append(marked, s.heading)
		}
	}
	assert.ElementsMatch(t, required, marked, "sections with a paragraph that begins with %q", untouchedMark)
	index, err := find(sections, indexHeading)
	require.NoError(t, err)
	var anchors []string
	for _, heading := range required {
		anchors = append(anchors, anchor(heading))
	}
	assert.ElementsMatch(t, anchors, linked(index), "procedures that the section %q lists", indexHeading)
	assert.ElementsMatch(t, required, started(t, filepath.Join(root, "e2e")), "procedures that tests start")
}

var rowLink = regexp.MustCompile(`\]\([^)#]*#([a-z0-9_-]+)\) \|$`)

// linked returns the anchors that the last columns of a table link to.
func linked(index section) []string {
	var anchors []string
	for _, line := range index.lines {
		if found := rowLink.FindStringSubmatch(line); found != nil {
			anchors = append(anchors, found[1])
		}
	}
	return anchors
}

// started returns the headings of the procedures that tests below dir start.
func started(t *testing.T, dir string) []string {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if heading, ok := startedBy(node); ok {
				found[heading] = true
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	headings := make([]string, 0, len(found))
	for heading := range found {
		headings = append(headings, heading)
	}
	return headings
}

// startedBy returns the heading in a call such as env.StartProcedure(t, "Upgrade", values).
func startedBy(node ast.Node) (heading string, ok bool) {
	call, ok := node.(*ast.CallExpr)
	if !ok || len(call.Args) < 2 {
		return "", false
	}
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || function.Sel.Name != "StartProcedure" {
		return "", false
	}
	literal, ok := call.Args[1].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	heading, err := strconv.Unquote(literal.Value)
	return heading, err == nil
}
