// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package charts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chartutil"
)

// A chart of a release has the version and the image of the release, and the objects of the chart
// in the tree. It is the same each time.
func TestPackage(t *testing.T) {
	for _, name := range allCharts {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			output, err := pack(t, name, "v0.1.0", "", dir)
			require.NoError(t, err, output)
			archive := filepath.Join(dir, name+"-0.1.0.tgz")
			assert.Equal(t, archive+"\n", output)
			packed := load(t, archive)
			assert.Equal(t, "0.1.0", packed.Metadata.Version)
			deployment := "Deployment/" + namespace + "/" + name
			got := render(t, packed, namespace, required(name))
			assert.Equal(t, "docker.io/library/"+name+":v0.1.0", firstContainer(t, got[deployment])["image"])

			values := chartutil.MergeTables(map[string]any{"image": map[string]any{"tag": "v0.1.0"}}, required(name))
			want := render(t, load(t, folder(t, name)), namespace, values)
			require.Len(t, got, len(want))
			for key, object := range want {
				assert.Equal(t, text(t, object), text(t, got[key]), key)
			}

			again := t.TempDir()
			_, err = pack(t, name, "v0.1.0", "", again)
			require.NoError(t, err)
			first, err := os.ReadFile(archive)
			require.NoError(t, err)
			second, err := os.ReadFile(filepath.Join(again, name+"-0.1.0.tgz"))
			require.NoError(t, err)
			assert.True(t, bytes.Equal(first, second), "two archives of the same files differ")
			expectNoTimes(t, first)
		})
	}
}

// expectNoTimes fails if an archive has the time at which it was made.
func expectNoTimes(t *testing.T, archive []byte) {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	assert.Zero(t, compressed.ModTime)
	for files := tar.NewReader(compressed); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		assert.Zero(t, header.ModTime.Unix(), header.Name)
	}
}

// A chart of a release names an image in a registry by its digest. A tag is refused.
func TestPackageNamesTheImageByItsDigest(t *testing.T) {
	for _, name := range allCharts {
		image := "registry.example.com:5000/" + name + "@" + digest
		dir := t.TempDir()
		output, err := pack(t, name, "v1.2.3", image, dir)
		require.NoError(t, err, output)
		rendered := render(t, load(t, filepath.Join(dir, name+"-1.2.3.tgz")), namespace, required(name))
		assert.Equal(t, image, firstContainer(t, rendered["Deployment/"+namespace+"/"+name])["image"])

		output, err = pack(t, name, "v1.2.3", "registry.example.com:5000/"+name+":v1.2.3", dir)
		require.Error(t, err)
		assert.Contains(t, output, "must be NAME@sha256:DIGEST")
	}
}

// pack packages a chart and returns what the script prints.
func pack(t *testing.T, name, version, image, dir string) (string, error) {
	t.Helper()
	script := filepath.Join(root(t), "hack", "package-chart.sh")
	output, err := exec.CommandContext(t.Context(), script, name, version, image, dir).CombinedOutput()
	return string(output), err
}
