// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dockerhost

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
)

// Installation returns the options with which the instances of an installation are containers of
// this Docker, with an image. It returns nil if h is nil.
func (h *Host) Installation(cp *controlplane.ControlPlane, image string) (*installation.Machines, error) {
	if h == nil {
		return nil, nil
	}
	kubeconfig, err := cp.BootstrapKubeconfig()
	if err != nil {
		return nil, err
	}
	privileges, err := Privileges()
	if err != nil {
		return nil, err
	}
	return &installation.Machines{
		DockerHost: h.Address,
		Image:      image,
		Privileges: privileges,
		Address:    h.Bridge,
		Kubeconfig: kubeconfig,
		CA:         cp.CA(),
	}, nil
}

// Privileges returns the privileges that containers of this machine can have: a container that
// lacks a capability cannot start privileged containers.
func Privileges() (string, error) {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return "", fmt.Errorf("read the capabilities of this process: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		bounding, found := strings.CutPrefix(lines.Text(), "CapBnd:\t")
		if !found {
			continue
		}
		set, err := strconv.ParseUint(bounding, 16, 64)
		if err != nil {
			return "", fmt.Errorf("read the capabilities of this process: %w", err)
		}
		if set&(1<<unix.CAP_SYS_RESOURCE) == 0 {
			return "capabilities", nil
		}
	}
	return "privileged", lines.Err()
}

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
// The name contains the checkout and the use: a build must not replace the image of another
// checkout or use while its nodes are created. The script has further variables of the environment.
func (h *Host) NodeImage(ctx context.Context, root, use string, out io.Writer, variables ...string) (string, error) {
	tag := use + "-" + Suffix(root)
	build := exec.CommandContext(ctx, filepath.Join(root, "hack", "node-image.sh"))
	build.Env = append(append(os.Environ(), "DOCKER_HOST="+h.Address, "TAG="+tag), variables...)
	build.Stdout, build.Stderr = out, out
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build the image of the nodes: %w", err)
	}
	return "nstance-node:" + tag, nil
}

// Suffix returns a suffix for names that only this checkout of the repository uses.
func Suffix(root string) string {
	digest := sha256.Sum256([]byte(root))
	return hex.EncodeToString(digest[:4])
}
