// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

var (
	// yamlBlock is a block of YAML in Markdown, which may be indented.
	yamlBlock = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```$")
	// separator separates the documents of a YAML file.
	separator = regexp.MustCompile(`(?m)^---\n`)
)

// Every object of our kinds and of Cluster API's in docs and in manifests/samples is accepted
// by the API server, which rejects unknown fields too.
func TestSamplesAreAccepted(t *testing.T) {
	t.Parallel()
	documents := map[string][]string{}
	root := filepath.Join("..", "..")
	for _, folder := range []string{"docs", filepath.Join("manifests", "samples")} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			blocks := []string{string(text)}
			if filepath.Ext(path) == ".md" {
				blocks = nil
				for _, match := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
					blocks = append(blocks, strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n"))
				}
			}
			name, err := filepath.Rel(root, path)
			for _, block := range blocks {
				documents[name] = append(documents[name], separator.Split(block, -1)...)
			}
			return err
		}))
	}
	accepted := 0
	for name, list := range documents {
		for _, document := range list {
			var object struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind == "" || !strings.Contains(object.APIVersion, "cluster.x-k8s.io/") {
				continue
			}
			if object.Kind == "MachinePool" && !strings.Contains(document, "template:") {
				continue // It shows what is added to an existing MachinePool.
			}
			accepted++
			// The rules of the definitions hold in any namespace. The webhook would want the shards
			// of each sample.
			document = regexp.MustCompile(`(?m)^  namespace: .*$`).ReplaceAllString(document, "  namespace: default")
			command := env.KubectlCommand(t.Context(), "create", "--dry-run=server", "--validate=strict", "--namespace", "default", "-f", "-")
			command.Stdin = strings.NewReader(document)
			if output, err := command.CombinedOutput(); err != nil {
				t.Errorf("%s: %s %s: %s", name, object.Kind, err, output)
			}
		}
	}
	require.GreaterOrEqual(t, accepted, 5, "objects")
}
