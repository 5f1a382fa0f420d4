// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

// digests are the digests of the images of a release, by name.
func digests() map[string]string {
	all := map[string]string{}
	for i, name := range []string{"nstance-operator", "nstance-server", "nstance-admin", "nstance-agent", "kubectl-nstance", "marekvs-operator"} {
		all[name] = "sha256:" + strings.Repeat(fmt.Sprintf("%x", i+10), 64)
	}
	return all
}

// release writes the manifests of a release into a folder, and returns what make prints.
func release(t *testing.T, folder, registry string) (string, error) {
	t.Helper()
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	output, err := exec.CommandContext(t.Context(), "make", "-C", root, "release-manifests", "VERSION="+releaseVersion,
		"RELEASE_DIR="+folder, "REGISTRY="+registry, "DOCS_URL=https://example.com/nstance/docs").CombinedOutput()
	return string(output), err
}

// The manifests of a release name the images in a registry by their digests. Without the digests there
// are no manifests.
func TestReleaseNamesTheImagesByTheirDigests(t *testing.T) {
	const registry = "registry.example.com:5000/nstance"
	folder := t.TempDir()
	output, err := release(t, folder, registry)
	require.Error(t, err)
	assert.Contains(t, output, "has no digest of nstance-operator")

	images := filepath.Join(folder, "images", releaseVersion)
	require.NoError(t, os.MkdirAll(images, 0o755))
	var lines strings.Builder
	for name, digest := range digests() {
		fmt.Fprintf(&lines, "%s %s\n", name, digest)
	}
	require.NoError(t, os.WriteFile(filepath.Join(images, "digests"), []byte(lines.String()), 0o600))
	output, err = release(t, folder, registry)
	require.NoError(t, err, output)

	for path, want := range map[string][]string{
		"infrastructure-nstance/" + releaseVersion + "/infrastructure-components.yaml": {"nstance-operator"},
		"manifests/" + releaseVersion + "/crd.yaml":                                    nil,
		"manifests/" + releaseVersion + "/demo.yaml":                                   {"nstance-admin", "nstance-operator", "nstance-server"},
		"manifests/" + releaseVersion + "/external.yaml":                               {"nstance-operator"},
		"manifests/" + releaseVersion + "/marekvs.yaml":                                {"marekvs-operator"},
		"manifests/" + releaseVersion + "/marekvs-monitoring.yaml":                     nil,
		"manifests/" + releaseVersion + "/monitoring.yaml":                             nil,
		"manifests/" + releaseVersion + "/operator.yaml":                               {"nstance-operator"},
		"manifests/" + releaseVersion + "/uninstall.yaml":                              {"nstance-operator"},
		"manifests/" + releaseVersion + "/workload.yaml":                               nil,
	} {
		text, err := os.ReadFile(filepath.Join(folder, path))
		require.NoError(t, err)
		named := map[string]bool{}
		for _, match := range regexp.MustCompile(`(?m)^[ -]+image: (.*)$`).FindAllStringSubmatch(string(text), -1) {
			named[match[1]] = true
		}
		for _, name := range want {
			assert.True(t, named[registry+"/"+name+"@"+digests()[name]], "%s: %v", path, named)
		}
		assert.Len(t, named, len(want), path)
	}
	for _, name := range []string{"monitoring", "marekvs-monitoring"} {
		alerts, err := os.ReadFile(filepath.Join(folder, "manifests", releaseVersion, name+".yaml"))
		require.NoError(t, err)
		links := regexp.MustCompile(`(?m)^ +runbook_url: (.*)#`).FindAllStringSubmatch(string(alerts), -1)
		require.NotEmpty(t, links)
		for _, link := range links {
			assert.Equal(t, "https://example.com/nstance/docs/"+name+".md", link[1])
		}
	}
	sums, err := os.ReadFile(filepath.Join(folder, "SHA256SUMS"))
	require.NoError(t, err)
	for _, chart := range []string{"nstance-operator", "nstance-server", "marekvs-operator"} {
		assert.Contains(t, string(sums), "  charts/"+chart+"-"+strings.TrimPrefix(releaseVersion, "v")+".tgz\n")
	}

	// Another folder has the same files.
	again := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(again, "images"), os.DirFS(filepath.Join(folder, "images"))))
	output, err = release(t, again, registry)
	require.NoError(t, err, output)
	require.NoError(t, fs.WalkDir(os.DirFS(folder), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		first, err := os.ReadFile(filepath.Join(folder, path))
		require.NoError(t, err)
		second, err := os.ReadFile(filepath.Join(again, path))
		require.NoError(t, err)
		assert.Equal(t, first, second, path)
		return nil
	}))
}
