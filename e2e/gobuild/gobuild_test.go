// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gobuild

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeModule writes a module with a program and a package, which nobody has compiled
// before, and returns its build.
func writeModule(t *testing.T) Build {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"go.mod":           "module example.com\n",
		"library/print.go": "package library\n\nimport \"os\"\n\nfunc Print() { os.Stdout.WriteString(`" + dir + "`) }\n",
		"program/main.go":  "package main\n\nimport \"example.com/library\"\n\nfunc main() { library.Print() }\n",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Build{Name: "it", Dir: dir, Output: filepath.Join(dir, "bin") + "/", Packages: []string{"./program"}}
}

func TestRun(t *testing.T) {
	b := writeModule(t)
	costs := uncompiled(t.Context(), []Build{b})
	// What was not compiled with the same flags before is a part of the standard library.
	maps.DeleteFunc(costs, func(path string, _ int64) bool { return !strings.HasPrefix(path, "example.com/") })
	if got := slices.Sorted(maps.Keys(costs)); !slices.Equal(got, []string{"example.com/library"}) {
		t.Errorf("%v are to compile", got)
	}
	if info, err := os.Stat(filepath.Join(b.Dir, "library", "print.go")); err != nil || costs["example.com/library"] != info.Size()+importCost {
		t.Errorf("the library costs %d, %v", costs["example.com/library"], err)
	}
	var progress bytes.Buffer
	if err := b.Run(t.Context(), &progress); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(progress.String(), "built it: ") {
		t.Errorf("the progress is %q", progress.String())
	}
	if output, err := exec.Command(filepath.Join(b.Dir, "bin", "program")).CombinedOutput(); err != nil || !strings.Contains(string(output), b.Dir) {
		t.Errorf("the program prints %q, error %v", output, err)
	}
	if costs := uncompiled(t.Context(), []Build{b}); costs["example.com/library"] != 0 {
		t.Errorf("%v are to compile after the build", costs)
	}
}

func TestRunReportsErrors(t *testing.T) {
	b := writeModule(t)
	if err := os.WriteFile(filepath.Join(b.Dir, "library", "broken.go"), []byte("package library\n\nvar x = y\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := b.Run(t.Context(), new(bytes.Buffer))
	if err == nil || !strings.HasPrefix(err.Error(), "build it: exit status 1\n") || !strings.Contains(err.Error(), "broken.go:3:9: undefined: y") {
		t.Errorf("got error %v", err)
	}
}
