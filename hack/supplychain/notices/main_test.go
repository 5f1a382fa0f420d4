// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	cache, root := t.TempDir(), t.TempDir()
	file := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file(root+"/LICENSE", "BSD of Go")
	file(cache+"/example.com/!big@v1.0.0/LICENSE.txt", "MIT")
	file(cache+"/example.com/small@v1.1.0/COPYING", "MIT")
	file(cache+"/example.com/small@v1.1.0/NOTICE", "by us")
	file(cache+"/example.com/small@v1.1.0/license.go", "package small")
	file(cache+"/example.com/none@v1.0.0/README", "MIT")
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
		{Path: "example.com/Big", Version: "v1.0.0"},
		{Path: "example.com/old", Version: "v0.1.0", Replace: &debug.Module{Path: "example.com/small", Version: "v1.1.0"}},
	}}
	var out strings.Builder
	if err := write(&out, "program", info, cache, root); err != nil {
		t.Fatal(err)
	}
	for text, count := range map[string]int{
		"BSD of Go": 1, "MIT": 1, "by us": 1, "package small": 0, "Go go1.26.8": 1,
		"example.com/Big v1.0.0\n  example.com/small v1.1.0\n": 1, "program contains": 1,
	} {
		if got := strings.Count(out.String(), text); got != count {
			t.Errorf("%q is there %d times, want %d:\n%s", text, got, count, out.String())
		}
	}
	info.Deps = append(info.Deps, &debug.Module{Path: "example.com/none", Version: "v1.0.0"})
	if err := write(&out, "program", info, cache, root); err == nil || !strings.Contains(err.Error(), "example.com/none v1.0.0: the module has no license") {
		t.Errorf("error %v for a module without a license", err)
	}
}
