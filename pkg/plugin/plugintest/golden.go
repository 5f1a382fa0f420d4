// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package plugintest has fixtures of the tests of the plugin of kubectl.
package plugintest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files")

// Updating reports whether the test writes what it compares with, because of -update.
func Updating() bool { return *update }

// Golden compares a text with testdata/NAME. With -update it writes the text there instead, and
// the test fails: a test that compares what it has written shows nothing.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		// The test goes on: it may have more files to write.
		t.Errorf("wrote %s; run the test again without -update", path)
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(string(want), got); difference != "" {
		t.Errorf("%s differs (-want +got); run the test with -update and read the difference:\n%s", path, difference)
	}
}

// YAML returns a structure as the commands print it.
func YAML(t *testing.T, structure any) string {
	t.Helper()
	data, err := yaml.Marshal(structure)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
