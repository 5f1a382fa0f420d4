// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"fmt"
	"os"
	"path"
	"slices"
	"testing"

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
