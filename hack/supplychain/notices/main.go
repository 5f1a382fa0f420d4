// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command notices prints the licenses and notices of everything that is linked into a binary of Go:
// its modules, which the binary lists, and the standard library. The licenses demand that their
// texts are distributed with the binary. The texts are those in the module cache; a module without
// one is an error.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// legal matches the names of files with licenses and notices, as
// https://pkg.go.dev/license-policy recognizes them.
var legal = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|copyright|notice|patents|third[_-]?party)`)

func main() {
	binary := flag.String("binary", "", "the binary")
	flag.Parse()
	if err := run(os.Stdout, *binary); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("-binary: %w", err)
	}
	output, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	folders := strings.Fields(string(output))
	if len(folders) != 2 {
		return fmt.Errorf("go env printed %q, want two folders", output)
	}
	return write(out, filepath.Base(binary), info, folders[0], folders[1])
}

// notice is a text, and the modules that it is for.
type notice struct {
	modules []string
	file    string
	text    []byte
}

// write prints each text once, with its modules. cache is the module cache, and root the folder of
// Go.
func write(out io.Writer, name string, info *debug.BuildInfo, cache, root string) error {
	var notices []*notice
	known := map[[sha256.Size]byte]*notice{}
	add := func(title, folder string) error {
		texts, err := texts(folder)
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		for _, found := range texts {
			sum := sha256.Sum256(found.text)
			if known[sum] == nil {
				known[sum] = &found
				notices = append(notices, &found)
			}
			known[sum].modules = append(known[sum].modules, title)
		}
		return nil
	}
	if err := add("Go "+info.GoVersion, root); err != nil {
		return err
	}
	for _, dependency := range info.Deps {
		if dependency.Replace != nil {
			dependency = dependency.Replace
		}
		path, err := module.EscapePath(dependency.Path)
		if err != nil {
			return err
		}
		version, err := module.EscapeVersion(dependency.Version)
		if err != nil {
			return fmt.Errorf("%s: %w", dependency.Path, err)
		}
		if err := add(dependency.Path+" "+dependency.Version, filepath.Join(cache, path+"@"+version)); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%s contains the following software of others, under these licenses and notices.\n", name)
	for _, n := range notices {
		fmt.Fprintf(out, "\n%s\n\n%s of\n  %s\n\n%s\n", strings.Repeat("=", 80), n.file, strings.Join(n.modules, "\n  "), n.text)
	}
	return nil
}

// texts returns the licenses and notices in a folder, sorted by name.
func texts(folder string) ([]notice, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var found []notice
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !legal.MatchString(entry.Name()) || strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		found = append(found, notice{file: entry.Name(), text: text})
	}
	if !slices.ContainsFunc(found, func(n notice) bool { return len(n.text) > 0 }) {
		return nil, errors.New("the module has no license in " + folder)
	}
	return found, nil
}
