// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/inputs"
)

func TestEveryInputIsKnown(t *testing.T) {
	packages, err := packagesWithTests(filepath.Join("..", ".."))
	require.NoError(t, err)
	for name, own := range suites {
		assert.Contains(t, packages, name, "suites lists a package without tests")
		for _, input := range own {
			assert.Contains(t, all, input, "an input of %s", name)
		}
	}
}

// Programs and kustomizations are checked when a test uses them (inputs.Check). If a test reads a
// folder in another way, its source contains the name of the folder.
func TestEveryFolderThatIsReadIsListed(t *testing.T) {
	packages, err := packagesWithTests(filepath.Join("..", ".."))
	require.NoError(t, err)
	for _, name := range packages {
		files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(name), "*_test.go"))
		require.NoError(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			if filepath.Base(file) == "screenshots_test.go" {
				continue // it only writes
			}
			for _, folder := range []string{inputs.Docs, inputs.Manifests} {
				if bytes.Contains(source, []byte(`"`+folder+`"`)) && !slices.Contains(inputsOf(name), folder) {
					t.Errorf("%s reads the folder %s: add it to the inputs of %s", file, folder, name)
				}
			}
		}
	}
}

func TestTheDigestCoversNamesAndContents(t *testing.T) {
	folder := t.TempDir()
	digest := func() string {
		t.Helper()
		d, err := digestOf(folder)
		require.NoError(t, err)
		return d
	}
	seen := []string{digest()}
	for _, change := range []func() error{
		func() error { return os.WriteFile(filepath.Join(folder, "a"), []byte("x"), 0o600) },
		func() error { return os.WriteFile(filepath.Join(folder, "a"), []byte("y"), 0o600) },
		func() error { return os.Rename(filepath.Join(folder, "a"), filepath.Join(folder, "b")) },
		func() error { return os.WriteFile(filepath.Join(folder, "c"), nil, 0o600) },
	} {
		require.NoError(t, change())
		now := digest()
		assert.NotContains(t, seen, now)
		seen = append(seen, now)
	}
	assert.Equal(t, seen[len(seen)-1], digest())
}

func TestProgramsThatAreUpToDateKeepTheirTime(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, []byte("x"), 0o755))
	before, err := digestOfProgram(program)
	require.NoError(t, err)
	info, err := os.Stat(program)
	require.NoError(t, err)
	assert.Equal(t, built, info.ModTime())
	require.NoError(t, os.Chtimes(program, time.Time{}, time.Now()), "as go build does")
	after, err := digestOfProgram(program)
	require.NoError(t, err)
	assert.Equal(t, before, after)
	again, err := os.Stat(program)
	require.NoError(t, err)
	assert.Equal(t, info.ModTime(), again.ModTime())
}

// Run with the flags that this program prints, as make test does.
func TestNoTestBinaryHasTheDigestsOfAnotherSuite(t *testing.T) {
	info, ok := debug.ReadBuildInfo()
	require.True(t, ok)
	for _, setting := range info.Settings {
		if setting.Key == "-ldflags" {
			assert.NotContains(t, setting.Value, inputs.Variable)
		}
	}
}
