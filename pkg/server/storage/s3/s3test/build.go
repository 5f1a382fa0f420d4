// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"nstance.dev/operator/pkg/testing/source"
)

// build returns the path of the gateway's program. The program has a module of its own, so
// that its requirements are not requirements of this module. hack/test.sh builds it before the
// tests; otherwise the first test does, which takes minutes.
var build = sync.OnceValues(func() (string, error) {
	root, err := source.Root("hack/versitygw/go.*")
	if err != nil {
		return "", err
	}
	module, folder := filepath.Join(root, "hack", "versitygw"), filepath.Join(root, ".dev", "versitygw")
	unlock, err := lock(folder)
	if err != nil {
		return "", err
	}
	defer unlock()
	program := filepath.Join(folder, "versitygw")
	// A build sets the time of a program that is up to date, and Go's test cache would take
	// the program for another one.
	if isNewer(program, filepath.Join(module, "go.mod")) && isNewer(program, filepath.Join(module, "go.sum")) {
		return program, nil
	}
	_, err = source.Go(module, "build", "-ldflags=-s -w", "-o", program, "github.com/versity/versitygw/cmd/versitygw")
	if err != nil {
		return "", fmt.Errorf("build the S3 service: %w", err)
	}
	return program, nil
})

// isNewer reports whether a file exists that was written after the input.
func isNewer(path, input string) bool {
	file, err := os.Stat(path)
	if err != nil {
		return false
	}
	than, err := os.Stat(input)
	return err == nil && file.ModTime().After(than.ModTime())
}

// lock lets one test process at a time build the program. The others find it up to date, and
// do not replace it while it runs.
func lock(folder string) (unlock func(), err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = file.Close() }
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		unlock()
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return unlock, nil
}
