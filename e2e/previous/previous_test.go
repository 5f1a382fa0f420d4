// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package previous

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// commit commits a file in a repository, and returns the commit.
func commit(t *testing.T, root, content string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(root, "file"), []byte(content), 0o600))
	run(t, root, "add", "file")
	run(t, root, "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "-m", content)
	return run(t, root, "rev-parse", "HEAD")
}

func run(t *testing.T, root string, arguments ...string) string {
	t.Helper()
	output, err := git(t.Context(), root, arguments...)
	require.NoError(t, err)
	return output
}

func TestRevision(t *testing.T) {
	t.Setenv(Variable, "")
	root := t.TempDir()
	expect := func(want string) {
		t.Helper()
		revision, err := Revision(t.Context(), root)
		require.NoError(t, err)
		require.Equal(t, want, revision)
	}
	expectError := func(root, want string) {
		t.Helper()
		_, err := Revision(t.Context(), root)
		require.ErrorContains(t, err, want)
	}
	expectError(root, "is no clone of git")
	run(t, root, "init", "--quiet")
	first := commit(t, root, "first")
	expectError(root, "has one commit only")
	second := commit(t, root, "second")
	expect(first)
	run(t, root, "tag", "v0.1.0", first)
	commit(t, root, "third")
	expect(first)
	run(t, root, "tag", "other", second)
	expect(first)
	// HEAD has the tag of the version that is tested, which is not the previous version.
	run(t, root, "tag", "v0.2.0")
	expect(first)
	t.Setenv(Variable, "other")
	expect(second)
	t.Setenv(Variable, "nothing")
	expectError(root, `run git fetch origin "nothing"`)

	t.Setenv(Variable, "")
	shallow := filepath.Join(t.TempDir(), "shallow")
	run(t, root, "clone", "--quiet", "--depth=1", "--no-tags", "file://"+root, shallow)
	expectError(shallow, "git fetch --unshallow --tags")
}

func TestSource(t *testing.T) {
	root, folder := t.TempDir(), filepath.Join(t.TempDir(), "source")
	run(t, root, "init", "--quiet")
	first := commit(t, root, "first")
	commit(t, root, "second")
	for range 2 {
		require.NoError(t, source(t.Context(), root, first, folder))
		content, err := os.ReadFile(filepath.Join(folder, "file"))
		require.NoError(t, err)
		require.Equal(t, "first", string(content))
	}
	require.Error(t, source(t.Context(), root, "nothing", filepath.Join(t.TempDir(), "source")))
}

// If the previous version has no chart, the first version of the chart is the one before.
func TestCharts(t *testing.T) {
	root := t.TempDir()
	run(t, root, "init", "--quiet")
	older := commit(t, root, "1")
	t.Setenv(Variable, older)
	_, err := Charts(t.Context(), root)
	require.ErrorContains(t, err, "no commit has the chart")

	path := filepath.Join(root, operatorChart)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	var newer string
	for _, version := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(path, []byte(version), 0o600))
		run(t, root, "add", operatorChart)
		newer = commit(t, root, version)
	}
	// The chart that was removed and added again is no first version.
	run(t, root, "rm", "--quiet", operatorChart)
	commit(t, root, "removed")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("third"), 0o600))
	run(t, root, "add", operatorChart)
	commit(t, root, "third")
	for revision, want := range map[string]string{older: "first", newer: "second"} {
		t.Setenv(Variable, revision)
		folder, err := Charts(t.Context(), root)
		require.NoError(t, err)
		chart, err := os.ReadFile(filepath.Join(folder, operatorChart))
		require.NoError(t, err)
		require.Equal(t, want, string(chart))
	}
}
