// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKubeAtHand: programs are used if all are there, in the right minor version.
func TestKubeAtHand(t *testing.T) {
	root, err := FindRoot(".")
	require.NoError(t, err)
	b := Builder{Root: root, CacheDir: t.TempDir()}
	assets, path := t.TempDir(), t.TempDir()
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	t.Setenv("PATH", path)
	write := func(dir, name, version string) {
		text := fmt.Sprintf("#!/bin/sh\necho %s, version %s.7: \"$@\"\n", name, version)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	for _, part := range parts {
		version, err := b.minorVersion(part.module)
		require.NoError(t, err)
		dir := path
		if part.name == Etcd || part.name == APIServer {
			dir = assets
		}
		write(dir, part.name, version)
	}
	found := func() (*Builder, string) {
		var progress strings.Builder
		b.Progress = &progress
		used, err := b.withInstalledKube(t.Context())
		require.NoError(t, err)
		return &used, progress.String()
	}
	used, progress := found()
	assert.Contains(t, progress, "using "+filepath.Join(assets, Etcd)+", ")
	// Our kubectl is a link to the script. The script must not call it.
	ours := t.TempDir()
	require.NoError(t, os.Symlink(used.kube, filepath.Join(ours, "kubectl")))
	t.Setenv("PATH", ours+":"+path)
	used, _ = found()
	for program, want := range map[string]string{
		used.kube + " etcd --a='b c'":           "etcd, version v3.6.7: --a=b c\n",
		filepath.Join(ours, "kubectl") + " get": "kubectl, version v1.36.7: get\n",
	} {
		output, err := exec.Command("/bin/sh", "-c", program).Output()
		require.NoError(t, err)
		assert.Equal(t, want, string(output))
	}

	write(path, Scheduler, "v1.2")
	used, progress = found()
	assert.Equal(t, "not used: "+filepath.Join(path, Scheduler)+` has version "v1.2", not v1.36`+"\n", progress)
	assert.Equal(t, b.CacheDir, used.CacheDir)
	require.NoError(t, os.Remove(filepath.Join(path, Scheduler)))
	used, progress = found()
	assert.Empty(t, progress)
	assert.Empty(t, used.kube)
}
