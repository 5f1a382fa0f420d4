// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gobuild

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// writeModule writes a module with a program and a package, which were not compiled before, and
// returns its build.
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
	// The rest is the part of the standard library that was not compiled with these flags before.
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

func TestOtherOutputIsNoPackage(t *testing.T) {
	var e estimate
	for _, part := range []string{"internal/goarch\nk8s.io/ap", "i/core/v1\n# example.com/broken\n", "broken.go:1:2: undefined: x\nk8s.io/api/core/v1\ninco"} {
		if n, err := fmt.Fprint(&e, part); n != len(part) || err != nil {
			t.Fatalf("wrote %d bytes of %q, error %v", n, part, err)
		}
	}
	if got := len(e.compiled); got != 2 {
		t.Errorf("counted %d packages, want 2", got)
	}
	if got, want := e.rest.String(), "# example.com/broken\nbroken.go:1:2: undefined: x\n"; got != want {
		t.Errorf("the other output is %q, want %q", got, want)
	}
}

func TestNoEstimateWithoutData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e estimate
		expectLeft(t, &e, "package 0")
		fmt.Fprintln(&e, "go: downloading k8s.io/api v0.36.3")
		expectLeft(t, &e, "downloading modules")
		fmt.Fprintln(&e, "fmt")
		time.Sleep(time.Minute)
		expectLeft(t, &e, "package 1") // it is not known what is left
		e.expect(map[string]int64{"a": 1 << 20, "b": 1 << 20})
		expectLeft(t, &e, "package 1") // none of these was compiled
		fmt.Fprintln(&e, "a")
		expectLeft(t, &e, "about a minute left")
		fmt.Fprintln(&e, "b")
		expectLeft(t, &e, "linking")
	})
}

func expectLeft(t *testing.T, e *estimate, want string) {
	t.Helper()
	if got := e.left(time.Now()); got != want {
		t.Errorf("the estimate is %q, want %q", got, want)
	}
}

// TestEstimate compiles packages of very different sizes, some of which take twice as long as
// their cost predicts. The estimate stays near the real time, and never changes by more than a
// minute.
func TestEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		var e estimate
		costs, took := map[string]int64{}, map[string]time.Duration{}
		var paths []string
		left := time.Duration(0)
		for i := range 1000 {
			path := fmt.Sprintf("example.com/%d", i)
			paths = append(paths, path)
			costs[path] = 1 << (12 + random.IntN(10))
			took[path] = time.Duration(costs[path]*int64(1+random.IntN(2))) * 2 * time.Microsecond
			left += took[path]
		}
		e.expect(costs)
		minutes := regexp.MustCompile(`\d+`)
		estimates, last := 0, 0
		for i, path := range paths {
			fmt.Fprintln(&e, path)
			time.Sleep(took[path])
			left -= took[path]
			text := e.left(time.Now())
			got, err := strconv.Atoi(minutes.FindString(text))
			if err != nil || i < 100 {
				continue
			}
			estimates++
			if truth := left.Minutes(); float64(got) < 0.7*truth-1 || float64(got) > 1.4*truth+1 {
				t.Errorf("after %d packages: %q, and %.1f minutes are left", i, text, truth)
			}
			if last > 0 && (got-last > 1 || last-got > 1) {
				t.Errorf("after %d packages: %q, after %d minutes", i, text, last)
			}
			last = got
		}
		if estimates < 500 {
			t.Errorf("%d estimates in minutes", estimates)
		}
	})
}
