// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command suites builds each program that the end-to-end tests run once, and prints the flags of
// go test that link the digests of a suite's inputs into its test binary, a flag a line (see
// e2e/inputs).
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
	"nstance.dev/operator/e2e/previous"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
}

// lastFlag matches no suite. Go writes the last -ldflags of a command into every test binary: with the
// digests of a suite, a change of its inputs would have all suites run again.
const lastFlag = "-ldflags=nstance.dev/operator/e2e/cmd/suites/none=-w"

func run(ctx context.Context, output io.Writer) error {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return err
	}
	digests, err := buildAll(ctx, root)
	if err != nil {
		return err
	}
	packages, err := packagesWithTests(filepath.Join(root, "e2e"))
	if err != nil {
		return err
	}
	for _, name := range packages {
		own := map[string]string{}
		for _, input := range inputsOf(name) {
			if digest, known := digests[input]; known {
				own[input] = digest
			}
		}
		if len(own) == 0 {
			own["nothing"] = "" // the package uses no input
		}
		fmt.Fprintf(output, "-ldflags=nstance.dev/operator/e2e/%s=-w -X=%s=%s\n", name, inputs.Variable, inputs.Format(own))
	}
	fmt.Fprintln(output, lastFlag)
	return nil
}

// buildAll builds all programs and returns the digests of all inputs.
func buildAll(ctx context.Context, root string) (map[string]string, error) {
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	programs, err := builder.Programs(ctx, controlplane.Products...)
	if err != nil {
		return nil, err
	}
	digests := map[string]string{}
	for name, path := range programs {
		if digests[name], err = digestOfProgram(path); err != nil {
			return nil, err
		}
	}
	if digests[controlplane.ControlPlaneInput], err = digestOf(binaries.Kube, binaries.CAPI, binaries.KWOK); err != nil {
		return nil, err
	}
	for _, folder := range []string{inputs.Docs, inputs.Manifests} {
		if digests[folder], err = digestOf(filepath.Join(root, folder)); err != nil {
			return nil, err
		}
	}
	if digests[records], err = recordsOf(filepath.Join(root, "e2e", ".cache", records)); err != nil {
		return nil, err
	}
	// A tree without a history has no previous version: its suite is left out.
	if version, err := previous.Build(ctx, root); err == nil {
		digests[previous.Input], err = digestOf(version.Operator, version.Server)
		if err != nil {
			return nil, err
		}
	}
	return digests, nil
}

// records is the folder where suites with a cluster record the rights that the operator used.
const records = "rights"

// recordsOf makes the folder of the records and returns its id, which is an input of these
// suites: they run again if their records were deleted.
func recordsOf(folder string) (string, error) {
	path := filepath.Join(folder, "id")
	if id, err := os.ReadFile(path); err == nil {
		return string(id), nil
	}
	id := rand.Text()
	err := os.MkdirAll(folder, 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(id), 0o600)
	}
	return id, err
}

// built is the time of all programs: their digests alone say whether they changed.
var built = time.Unix(1, 0)

// digestOfProgram returns the digest of a program and sets its time. go build gives a program
// that is up to date a new time, and go test runs a test again if a file that the test opened
// has another time.
func digestOfProgram(path string) (string, error) {
	if err := os.Chtimes(path, built, built); err != nil {
		return "", fmt.Errorf("set the time of a program: %w", err)
	}
	return digestOf(path)
}

// digestOf returns a digest of files, and of the files in folders with their names.
func digestOf(paths ...string) (string, error) {
	digest := sha256.New()
	for _, path := range paths {
		err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			size, err := io.Copy(digest, file)
			fmt.Fprintln(digest, path, size)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("compute the digest of %s: %w", path, err)
		}
	}
	return fmt.Sprintf("%x", digest.Sum(nil)[:16]), nil
}

// packagesWithTests returns the folders of a module that have tests, relative to its own.
func packagesWithTests(module string) ([]string, error) {
	var folders []string
	err := filepath.WalkDir(module, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == ".cache":
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		if matched, err := filepath.Match("*_test.go", entry.Name()); err != nil || !matched {
			return err
		}
		relative, err := filepath.Rel(module, filepath.Dir(path))
		folders = append(folders, filepath.ToSlash(relative))
		return err
	})
	if len(folders) == 0 && err == nil {
		err = errors.New("no tests below " + module)
	}
	slices.Sort(folders)
	return slices.Compact(folders), err
}
