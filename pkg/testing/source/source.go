// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package source finds the source of this module, for tests that build programs from it.
package source

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Root returns the root folder of the module nstance.dev/operator, whose test or whose
// dependent's test is running. Inputs are patterns of the files below it from which the
// test builds a program with the go command. Root reads these files, because the test cache
// of Go only tracks files that the test process itself opens
// (https://pkg.go.dev/cmd/go#hdr-Test_packages).
func Root(inputs ...string) (string, error) {
	root, err := Go("", "list", "-m", "-f", "{{.Dir}}", "nstance.dev/operator")
	if err != nil {
		return "", err
	}
	for _, pattern := range inputs {
		paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return "", err
		}
		if len(paths) == 0 {
			return "", fmt.Errorf("no file is %s in %s", pattern, root)
		}
		for _, path := range paths {
			if _, err := os.ReadFile(path); err != nil {
				return "", err
			}
		}
	}
	return root, nil
}

// Go runs the go command in a folder and returns what it prints.
func Go(dir string, arguments ...string) (string, error) {
	cmd := exec.Command("go", arguments...)
	cmd.Dir = dir
	// A workspace above the repository must not change what is built. Test programs are
	// static, and make builds everything without cgo.
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	cmd.Stderr = new(strings.Builder)
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, cmd.Stderr)
	}
	return strings.TrimSpace(string(output)), nil
}
