// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/plugin/plugintest"
)

// completed returns what the user is offered.
func completed(t *testing.T, server *plugintest.Server, args ...string) []string {
	t.Helper()
	got := run(t, server, append([]string{"__complete"}, args...)...)
	require.Equal(t, 0, got.code, got.stderr)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	return lines[:len(lines)-1] // The last line is for the shell.
}

// TestNamesAreCompleted: ids of instances are too long to type.
func TestNamesAreCompleted(t *testing.T) {
	server := plugintest.NewServer(t, drained())
	assert.Equal(t, []string{plugintest.Pool}, completed(t, server, "status", ""))
	nodes := completed(t, server, "why", "")
	assert.Contains(t, nodes, "a1")
	assert.Equal(t, nodes, completed(t, server, "drain-status", ""))
	assert.Empty(t, completed(t, server, "why", "a1", ""), "there is no second argument")
	assert.Equal(t, []string{"wide", "json", "yaml"}, completed(t, server, "status", "-o", ""))
	server.Forbidden = []string{"nstancemachinepools"}
	assert.Empty(t, completed(t, server, "status", ""))
}

// TestKubectlCompletes: kubectl runs the program of the plugin's name with the words of the line.
func TestKubectlCompletes(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "kubectl"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755))
	script, err := filepath.Abs(filepath.Join("..", "..", "..", "manifests", "krew", "kubectl_complete-nstance"))
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), script, "why", "")
	command.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	output, err := command.Output()
	require.NoError(t, err)
	assert.Equal(t, "nstance __complete why \n", string(output))
}

// TestVerbosityIsThatOfKubectl, and not the version.
func TestVerbosityIsThatOfKubectl(t *testing.T) {
	server := plugintest.NewServer(t, drained())
	// The verbosity belongs to the process, and so to all tests.
	t.Cleanup(func() {
		var verbosity klog.Level
		assert.NoError(t, verbosity.Set("0"))
	})
	assert.Equal(t, 0, run(t, server, "status", "-v=6").code)
	assert.Contains(t, run(t, server, "version").stdout, "kubectl-nstance, version ")
}
