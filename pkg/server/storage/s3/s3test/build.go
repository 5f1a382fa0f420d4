// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// build returns the path of the gateway's program. It has a module of its own, so
// that its requirements are not those of this module. The go command caches the
// program: the first build takes a minute or two.
var build = sync.OnceValues(func() (string, error) {
	root, err := goCommand("", "list", "-m", "-f", "{{.Dir}}", "nstance.dev/operator")
	if err != nil {
		return "", err
	}
	return goCommand(filepath.Join(root, "hack", "versitygw"), "tool", "-n", "versitygw")
})

func goCommand(dir string, arguments ...string) (string, error) {
	cmd := exec.Command("go", arguments...)
	cmd.Dir = dir
	// A workspace above the repository must not change what is built.
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = new(strings.Builder)
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build the S3 service: %s: %w\n%s", cmd, err, cmd.Stderr)
	}
	return strings.TrimSpace(string(output)), nil
}
