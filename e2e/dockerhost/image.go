// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dockerhost

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// CheckBuild returns an error that lists what NodeImage needs and does not find.
func CheckBuild() error {
	var missing []error
	for _, program := range []string{"mmdebstrap", "docker"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, err)
		}
	}
	if len(missing) > 0 {
		missing = append(missing, errors.New("on Debian: apt-get install mmdebstrap docker.io iptables"))
	}
	if os.Geteuid() != 0 {
		missing = append(missing, errors.New("only root can install Debian packages into an image"))
	}
	if err := errors.Join(missing...); err != nil {
		return fmt.Errorf("build the image of the nodes: %w", err)
	}
	return nil
}

// NodeImage builds the image of the nodes, if it is not up to date, and returns its name.
// The script that builds it writes its progress to out.
//
// The name is that of one use in one checkout: the daemon may have images of others, which
// a build must not replace while their nodes are created.
func (h *Host) NodeImage(ctx context.Context, root, use string, out io.Writer) (string, error) {
	tag := use + "-" + Suffix(root)
	build := exec.CommandContext(ctx, filepath.Join(root, "hack", "node-image.sh"))
	build.Env = append(os.Environ(), "DOCKER_HOST="+h.Address, "TAG="+tag)
	build.Stdout, build.Stderr = out, out
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build the image of the nodes: %w", err)
	}
	return "nstance-node:" + tag, nil
}

// Suffix distinguishes names of a checkout of the repository from those of others.
func Suffix(root string) string {
	digest := sha256.Sum256([]byte(root))
	return hex.EncodeToString(digest[:4])
}
